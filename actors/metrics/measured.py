"""Measurements of requests from arrival to end, and of the latest ones."""

from collections import deque
from collections.abc import Iterable

from sundog.actors.core.queue.policy import RankValue
from sundog.actors.core.request import Submit


class Measured:
    """Times of a request on the run's clock, and its tokens so far."""

    def __init__(self, submit: Submit) -> None:
        self.request_id = submit.request_id
        self.tenant = submit.tenant
        self.sampling = submit.sampling
        self.trace_headers = submit.trace_headers
        self.targets_s = (submit.slo_ttft_s, submit.slo_tpot_s, submit.slo_e2e_s)
        """Limits of the request for TTFT, TPOT and E2E, in seconds."""
        self.adapter = None if submit.adapter is None else submit.adapter.name
        self.arrival_s = submit.arrival_s
        self.num_prompt_tokens = submit.num_prompt_tokens
        self.max_tokens = submit.max_tokens
        self.predicted_tokens = submit.predicted_tokens
        self.priority = submit.priority
        self.rank: RankValue | None = None
        """Rank that the policy last gave it; None if all ranks are equal."""
        self.replica: int | None = None
        """Replica of the request; with a single replica None until it is first scheduled."""
        self.num_computed_tokens = 0
        """Computed tokens among its known ones, until all are computed."""
        self.block_ids: list[int] = []
        self.num_host_tokens = 0
        """Cached tokens loaded from host memory."""
        self.num_cached_tokens = self.num_tokens = self.num_preemptions = self.num_losses = 0
        self.scheduled_s: float | None = None
        """Time of its first step's begin, in seconds."""
        self.first_s: float | None = None
        self.last_s: float | None = None
        """Times of its first and its latest token, in seconds."""

    @property
    def is_running(self) -> bool:
        return bool(self.block_ids)

    @property
    def has_known_length(self) -> bool:
        """Whether the answer's length is known: only its limit ends it."""
        sampling = self.sampling
        may_stop = sampling.stop or sampling.stop_token_ids or sampling.constraint or sampling.repetition
        return sampling.ignore_eos and not may_stop

    @property
    def num_known_tokens(self) -> int:
        """Number of its prompt tokens and generated tokens."""
        return self.num_prompt_tokens + self.num_tokens

    @property
    def has_caught_up(self) -> bool:
        """Whether it decodes: all known tokens but the newest are computed."""
        return self.is_running and self.num_computed_tokens >= self.num_known_tokens - 1

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_s is None else self.first_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds between tokens; None with fewer than two."""
        if self.first_s is None or self.last_s is None or self.num_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.num_tokens - 1)

    def times_s(self, end_s: float) -> tuple[float, float, float]:
        """Return the times of the first step, first token and last token; `end_s` for missing ones."""
        scheduled_s = end_s if self.scheduled_s is None else self.scheduled_s
        first_s = end_s if self.first_s is None else self.first_s
        return scheduled_s, first_s, end_s if self.last_s is None else self.last_s

    def is_within(self, end_s: float) -> bool | None:
        """Return whether it met its own limits; None if it has none."""
        times_s = (self.ttft_s, self.tpot_s or 0.0, end_s - self.arrival_s)
        pairs = [(time, most) for time, most in zip(times_s, self.targets_s, strict=True) if most is not None]
        return all(time is not None and time <= most for time, most in pairs) if pairs else None

    def begin_anew(self) -> None:
        """Reset the request after its engine was lost before its first token; it waits again."""
        self.num_losses += 1
        self.scheduled_s = self.replica = None
        self.block_ids.clear()


def short(seconds: float | None) -> float | None:
    """Round to four digits, as precise as a page shows, which halves the bytes sent."""
    return None if seconds is None else float(f"{seconds:.4g}")


PERCENTS = (50, 95, 99)


class Recent:
    """Latest events; `gaps` pairs a time between tokens with the number of requests that had it in a step."""

    def __init__(self) -> None:
        self.ttft_s: deque[float] = deque(maxlen=500)
        self.gaps: deque[tuple[float, int]] = deque(maxlen=1000)
        self.ended: deque[tuple[Measured, str, float]] = deque(maxlen=300)


def percentiles(values: Iterable[tuple[float, int]]) -> tuple[float, ...]:
    """Return the 50th, 95th and 99th percentile of values with counts; empty without values."""
    ordered = sorted(values)
    total = sum(times for _, times in ordered)
    found: list[float] = []
    passed = 0
    for value, times in ordered:
        passed += times
        while len(found) < len(PERCENTS) and passed * 100 >= PERCENTS[len(found)] * total:
            found.append(value)
    return tuple(found)
