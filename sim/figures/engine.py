"""Figures of a run's engines: steps and blocks, drafts, and each replica's share."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sundog.actors.core.acceptance import Acceptance
from sundog.actors.core.records import dataclass
from sundog.sim.record.columns import StepColumns
from sundog.sim.record.recorder import Recorder
from sundog.sim.record.rows import Ints, Rows


def engine_figures(recorder: Recorder, first_arrival_s: float) -> dict[str, Any]:
    """Return the figures of all replicas together, by their names in a Summary."""
    kv_use, steps = recorder.kv_use, recorder.steps
    blocks = [num_blocks - 1 for num_blocks in recorder.own_blocks]
    span_s = _span_s(steps, first_arrival_s)
    whole = span_s * sum(blocks)
    num_steps = sum(each.num_steps for each in steps)
    return {
        "num_steps": num_steps,
        "num_kv_blocks": sum(blocks) // len(blocks),
        "kv_use_mean": sum(use.block_seconds for use in kv_use) / whole if whole > 0 else 0.0,
        "kv_use_max": max(use.max_blocks / own for use, own in zip(kv_use, blocks, strict=True)),
        "busy_fraction": sum(each.busy_s for each in steps) / (span_s * len(steps)) if span_s > 0 else 0.0,
        "tokens_per_step": sum(each.num_batched_tokens for each in steps) / max(num_steps, 1),
    }


def _span_s(steps: Sequence[StepColumns], first_arrival_s: float) -> float:
    return max(each.last_end_s for each in steps) - first_arrival_s


@dataclass(frozen=True, slots=True)
class HostFigures:
    """Prefix-hit tokens loaded from host memory, and their share of all prompt tokens.

    `reloaded_tokens` were loaded instead of recomputed, for preempted requests.
    """

    hit_tokens: int
    hit_rate: float
    reloaded_tokens: int

    @classmethod
    def of(cls, recorder: Recorder, prompt_tokens: int) -> "HostFigures | None":
        """Return the figures of a run; None without host memory."""
        if (hits := recorder.host_hits) is None:
            return None
        return cls(hits.hit_tokens, hits.hit_tokens / max(prompt_tokens, 1), hits.reloaded_tokens)


@dataclass(frozen=True, slots=True)
class SpeculationFigures:
    """Counts of drafts; `mean_length` includes the token after the accepted ones."""

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    acceptance_rate: float
    mean_length: float
    rates_by_position: tuple[float, ...]

    @classmethod
    def of(cls, counts: Acceptance) -> "SpeculationFigures | None":
        """Return the figures; None for a run without drafts."""
        if not counts.num_drafts:
            return None
        totals = (counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens)
        return cls(*totals, counts.rate, counts.mean_length, counts.rates)


@dataclass(frozen=True, slots=True)
class ReplicaFigures:
    """Requests that a replica admitted, and their tokens."""

    num_requests: int
    prompt_tokens: int
    output_tokens: int
    prefix_hit_tokens: int
    prefix_hit_rate: float


class Replicas:
    """Sums by replica over requests that are added in parts. O(requests + replicas)"""

    def __init__(self, num_replicas: int) -> None:
        self._sums = np.zeros((4, num_replicas), dtype=np.int64)

    def add(self, rows: Rows) -> None:
        """Add requests; those that no replica admitted are ignored."""
        admitted = rows.replica >= 0
        where, size = rows.replica[admitted], self._sums.shape[1]
        weights: tuple[Ints, ...] = (rows.num_prompt_tokens, rows.num_output_tokens, rows.prefix_hit_tokens)
        self._sums[0] += np.bincount(where, minlength=size)
        for sums, tokens in zip(self._sums[1:], weights, strict=True):
            np.add.at(sums, where, tokens[admitted])

    @property
    def imbalance(self) -> float | None:
        """Tokens that the busiest replica computed over the mean: 1 is even. None without any
        tokens.
        """
        computed = self._sums[1] + self._sums[2] - self._sums[3]
        return float(computed.max() / computed.mean()) if computed.any() else None

    def figures(self) -> list[ReplicaFigures]:
        """Return the figures of each replica, in order."""
        return [
            ReplicaFigures(
                count,
                prompt,
                output_tokens=output,
                prefix_hit_tokens=hit,
                prefix_hit_rate=hit / max(prompt, 1),
            )
            for count, prompt, output, hit in self._sums.T.tolist()
        ]
