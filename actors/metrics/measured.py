"""A request as it is measured, from its arrival to its end, and what was measured last."""

from collections import deque
from collections.abc import Iterable

from sundog.actors.core.queue.policy import RankValue
from sundog.actors.core.request import Submit


class Measured:
    """A request's instants, on the run's clock, and its tokens so far."""

    def __init__(self, submit: Submit) -> None:
        self.request_id = submit.request_id
        self.tenant = submit.tenant
        self.sampling = submit.sampling
        self.trace_headers = submit.trace_headers
        self.targets_s = (submit.slo_ttft_s, submit.slo_tpot_s, submit.slo_e2e_s)
        """The request's own targets for the first token, from token to token, and for the last token."""
        self.adapter = None if submit.adapter is None else submit.adapter.name
        self.arrival_s = submit.arrival_s
        self.num_prompt_tokens = submit.num_prompt_tokens
        self.max_tokens = submit.max_tokens
        self.predicted_tokens = submit.predicted_tokens
        self.priority = submit.priority
        self.rank: RankValue | None = None
        """The rank that the policy gave it when it was seen last; None where all ranks are the same."""
        self.replica: int | None = None
        """The replica to which it was sent; with one replica, None until it is first scheduled."""
        self.num_computed_tokens = 0
        """The number of its known tokens that are computed, until it has caught up with them."""
        self.block_ids: list[int] = []
        self.num_host_tokens = 0
        """The number of its cached tokens that were loaded from the host's memory."""
        self.num_cached_tokens = self.num_tokens = self.num_preemptions = self.num_losses = 0
        self.scheduled_s: float | None = None
        """The time at which its first step began."""
        self.first_s: float | None = None
        self.last_s: float | None = None
        """The times at which its first and its latest token came."""

    @property
    def is_running(self) -> bool:
        return bool(self.block_ids)

    @property
    def has_known_length(self) -> bool:
        """True for an answer that nothing but its limit ends."""
        sampling = self.sampling
        may_stop = sampling.stop or sampling.stop_token_ids or sampling.constraint or sampling.repetition
        return sampling.ignore_eos and not may_stop

    @property
    def num_known_tokens(self) -> int:
        """The number of tokens of its prompt and of those that were generated."""
        return self.num_prompt_tokens + self.num_tokens

    @property
    def has_caught_up(self) -> bool:
        """True while it decodes: all known tokens but the newest are computed."""
        return self.is_running and self.num_computed_tokens >= self.num_known_tokens - 1

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_s is None else self.first_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """The mean time from token to token, None with fewer than two."""
        if self.first_s is None or self.last_s is None or self.num_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.num_tokens - 1)

    def times_s(self, end_s: float) -> tuple[float, float, float]:
        """Return the times of the first step, first token and last token; `end_s` for what never came."""
        scheduled_s = end_s if self.scheduled_s is None else self.scheduled_s
        first_s = end_s if self.first_s is None else self.first_s
        return scheduled_s, first_s, end_s if self.last_s is None else self.last_s

    def is_within(self, end_s: float) -> bool | None:
        """True if it met its own targets, None if it has none."""
        times_s = (self.ttft_s, self.tpot_s or 0.0, end_s - self.arrival_s)
        pairs = [(time, most) for time, most in zip(times_s, self.targets_s, strict=True) if most is not None]
        return all(time is not None and time <= most for time, most in pairs) if pairs else None

    def begin_anew(self) -> None:
        """Note that its engine was lost before its first token, and that it waits again."""
        self.num_losses += 1
        self.scheduled_s = self.replica = None
        self.block_ids.clear()


def short(seconds: float | None) -> float | None:
    """Round to four digits, which is what a page shows and less than half of what it would be sent."""
    return None if seconds is None else float(f"{seconds:.4g}")


PERCENTS = (50, 95, 99)


class Recent:
    """The latest events; `gaps` pairs a time between two tokens with how many requests had it in a step."""

    def __init__(self) -> None:
        self.ttft_s: deque[float] = deque(maxlen=500)
        self.gaps: deque[tuple[float, int]] = deque(maxlen=1000)
        self.ended: deque[tuple[Measured, str, float]] = deque(maxlen=300)


def percentiles(values: Iterable[tuple[float, int]]) -> tuple[float, ...]:
    """The 50th, 95th and 99th percentile of values that each occurred so often; nothing of none."""
    ordered = sorted(values)
    total = sum(times for _, times in ordered)
    found: list[float] = []
    passed = 0
    for value, times in ordered:
        passed += times
        while len(found) < len(PERCENTS) and passed * 100 >= PERCENTS[len(found)] * total:
            found.append(value)
    return tuple(found)
