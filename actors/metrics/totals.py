"""Totals of one engine, the lag of emulated ones, and cheap histograms."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from sundog.actors.core.acceptance import Acceptance
from sundog.actors.core.batch import Blocked
from sundog.actors.metrics.measured import Measured


class Histogram:
    """Histogram with counts up to each of the ascending `bounds`, and a sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Add a value `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        """Number of observed values."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """Return Prometheus' buckets: each bound, as text, with the number of values up to it."""
        total, buckets = 0, []
        for bound, count in zip((*map(float, self.bounds), float("inf")), self.counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        return buckets


def one_two_five(largest: int) -> tuple[int, ...]:
    """Return 1, 2, 5, 10, 20, 50 and so on, up to `largest`: vLLM's bounds for token counts."""
    bounds: list[int] = []
    power = 1
    while power <= largest:
        bounds += [step * power for step in (1, 2, 5) if step * power <= largest]
        power *= 10
    return tuple(bounds)


@dataclass(slots=True)
class Lag:
    """Lag of each engine: how late its last step ended, and the time that cannot be made up.

    In seconds of the server's own clock, which runs `time_scale` times as fast as real time.
    """

    num_replicas: int
    time_scale: float = 1.0
    late_s: list[float] = field(init=False)
    lost_s: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.late_s = [0.0] * self.num_replicas
        self.lost_s = [0.0] * self.num_replicas

    def to_json(self) -> dict[str, float]:
        """Return the worst lag of all engines."""
        return {"time_scale": self.time_scale, "late_s": _most(self.late_s), "lost_s": _most(self.lost_s)}


@dataclass(slots=True)
class KvTransferTotals:
    """Transfers of prompts' keys and values between pools; `seconds` sums request to end of each."""

    num_transfers: int = 0
    num_bytes: int = 0
    seconds: float = 0.0
    num_lost: int = 0


def _most(seconds: Sequence[float]) -> float:
    return round(max(seconds), 6)


LATENCY_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
"""Bounds of vLLM 0.32's histogram of preemptions, so that the same dashboard fits both."""


def _latency() -> Histogram:
    return Histogram(LATENCY_S)


@dataclass(slots=True)
class EngineTotals:
    """Totals of an engine, kept across restarts. `max_model_len` bounds the histograms of tokens.

    `num_blocks` excludes the null block; 0 until the engine is up.
    """

    max_model_len: int
    num_blocks: int = 0
    block_size: int = 0
    is_up: bool = True
    why_down: str | None = None
    """Reason of the last crash; None while it is up."""
    next_start_s: float | None = None
    """Time of the next start on the run's clock; None while it is up, or if it stays down."""
    num_restarts: int = 0
    has_other_policy: bool = False
    num_running: int = 0
    num_waiting: int = 0
    num_free_blocks: int = 0
    blocked: Blocked | None = None
    """Head of the queue and the reason why it waits; None if nothing waits."""
    num_steps: int = 0
    busy_s: float = 0.0
    num_preemptions: int = 0
    num_prefix_queries: int = 0
    num_prefix_hits: int = 0
    num_host_queries: int = 0
    """Prompt tokens looked up in host memory after a miss on the GPU."""
    num_host_hits: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_loaded_tokens: int = 0
    num_generation_tokens: int = 0
    drafts: Acceptance = field(default_factory=Acceptance)
    ended: Counter[str] = field(default_factory=Counter)
    """Number of requests by finish reason."""

    ttft_s: Histogram = field(default_factory=lambda: Histogram(TTFT_S))
    inter_token_s: Histogram = field(default_factory=lambda: Histogram(TOKEN_S))
    per_token_s: Histogram = field(default_factory=lambda: Histogram(TOKEN_S))
    e2e_s: Histogram = field(default_factory=_latency)
    queue_s: Histogram = field(default_factory=_latency)
    inference_s: Histogram = field(default_factory=_latency)
    prefill_s: Histogram = field(default_factory=_latency)
    decode_s: Histogram = field(default_factory=_latency)
    step_tokens: Histogram = field(default_factory=lambda: Histogram(STEP_TOKENS))
    preemptions: Histogram = field(default_factory=lambda: Histogram(PREEMPTIONS))
    prompt_tokens: Histogram = field(init=False)
    computed_prompt_tokens: Histogram = field(init=False)
    generation_tokens: Histogram = field(init=False)
    max_tokens: Histogram = field(init=False)

    def __post_init__(self) -> None:
        bounds = one_two_five(self.max_model_len)
        self.prompt_tokens = Histogram(bounds)
        self.computed_prompt_tokens = Histogram(bounds)
        self.generation_tokens = Histogram(bounds)
        self.max_tokens = Histogram(bounds)

    @property
    def blocked_by(self) -> str | None:
        """Reason why the head of the queue waits."""
        return None if self.blocked is None else self.blocked.reason

    @property
    def kv_usage(self) -> float:
        """Share of the KV cache held by requests, from 0 to 1."""
        return 1 - self.num_free_blocks / self.num_blocks if self.num_blocks else 0.0

    @property
    def num_computed_prompt_tokens(self) -> int:
        """Number of prompt tokens without a cached block."""
        return self.num_prompt_tokens - self.num_cached_tokens

    def begin(self, request: Measured) -> None:
        """Count a request's first token."""
        assert request.first_s is not None
        self.num_prompt_tokens += request.num_prompt_tokens
        self.num_cached_tokens += request.num_cached_tokens
        self.num_loaded_tokens += request.num_host_tokens
        self.ttft_s.observe(request.first_s - request.arrival_s)

    def end(self, request: Measured, reason: str, time_s: float) -> None:
        """Count a finished request; an abandoned one counts without times."""
        self.ended[reason] += 1
        if reason not in ("stop", "length"):
            return
        scheduled_s, first_s, last_s = request.times_s(time_s)
        self.e2e_s.observe(time_s - request.arrival_s)
        self.queue_s.observe(scheduled_s - request.arrival_s)
        self.prefill_s.observe(first_s - scheduled_s)
        self.decode_s.observe(last_s - first_s)
        self.inference_s.observe(last_s - scheduled_s)
        self.per_token_s.observe(request.tpot_s or 0.0)
        self.preemptions.observe(request.num_preemptions)
        self.prompt_tokens.observe(request.num_prompt_tokens)
        self.computed_prompt_tokens.observe(request.num_prompt_tokens - request.num_cached_tokens)
        self.generation_tokens.observe(request.num_tokens)
        self.max_tokens.observe(request.max_tokens)

    def lost(self, why: str, next_start_s: float | None) -> None:
        """Record a crash, after which nothing runs or waits there; `next_start_s` None means no restart."""
        self.why_down, self.next_start_s = why, next_start_s
        self.num_restarts += next_start_s is not None
        self.is_up, self.has_other_policy, self.blocked = False, False, None
        self.num_running = self.num_waiting = 0
        self.num_free_blocks = self.num_blocks
