"""What the steps of a run tell of its engines."""

from collections.abc import Sequence

from actors.core.records import dataclass
from sim.record.columns import Steps
from sim.record.recorder import Recorder


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """Figures of all replicas together; None each where only clients saw the run."""

    num_steps: int | None = None
    num_kv_blocks: int | None = None
    kv_use_mean: float | None = None
    kv_use_max: float | None = None
    busy_fraction: float | None = None
    tokens_per_step: float | None = None

    @classmethod
    def of(cls, recorder: Recorder, first_arrival_s: float) -> "EngineFigures":
        blocks, kv_use, steps = recorder.num_blocks - 1, recorder.kv_use, recorder.steps
        span_s = _span_s(steps, first_arrival_s)
        whole = span_s * len(steps) * blocks
        num_steps = sum(each.num_steps for each in steps)
        return cls(
            num_steps=num_steps,
            num_kv_blocks=blocks,
            kv_use_mean=sum(use.block_seconds for use in kv_use) / whole if whole > 0 else 0.0,
            kv_use_max=max(use.max_blocks for use in kv_use) / blocks,
            busy_fraction=sum(each.busy_s for each in steps) / (span_s * len(steps)) if span_s > 0 else 0.0,
            tokens_per_step=sum(each.num_batched_tokens for each in steps) / max(num_steps, 1),
        )


def _span_s(steps: Sequence[Steps], first_arrival_s: float) -> float:
    """The time until the last step ended, which under async scheduling is one that nobody needed."""
    return max(each.last_end_s for each in steps) - first_arrival_s
