"""Workload: arrivals, lengths, sessions, tenants; the same seed gives the same requests.

One kind of requests with tenants that share them (`Workload`), or a recorded trace that is scaled (`Scaled`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from sundog.actors.core.config import ConfigError
from sundog.sim.trace.read import Trace, read_trace
from sundog.sim.trace.record import MAX_ARRIVAL_S, TraceRequest, default_id
from sundog.sim.trace.window import TracePart
from sundog.sim.workload import stream
from sundog.sim.workload.contents import scaled_prompts
from sundog.sim.workload.distributions import Arrivals, Described, Fixed, Lengths, check_positive

BLOCK_TOKENS = 16
"""Tokens per id of a prompt's contents."""


@dataclass(frozen=True, slots=True)
class SystemPrompts(Described):
    """`count` system prompts of `tokens` tokens, shared by sessions.

    The k-th most popular is used in proportion to k ** -exponent.
    """

    tokens: int
    count: int = 1
    exponent: float = 1.0

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.count < 1 or not 0 <= self.exponent < np.inf:
            raise ConfigError(
                f"system_prompts has tokens {self.tokens}, count {self.count}, exponent"
                f" {self.exponent:g}: need at least 1, 1 and 0"
            )


@dataclass(frozen=True, slots=True)
class Sessions(Described):
    """Conversations by their turns, the pauses between (log-normal, seconds), and the tokens of each turn.

    `followup` is the number of tokens that a turn adds to the conversation; the first is the workload's
    `prompt`. A session ends before its prompt would exceed `max_prompt_tokens`.
    """

    turns: Lengths
    followup: Lengths
    pause_mean_s: float
    pause_median_s: float
    max_prompt_tokens: int = 32768

    def __post_init__(self) -> None:
        if not 0 < self.pause_median_s <= self.pause_mean_s < np.inf:
            raise ConfigError(
                f"pause_median_s ({self.pause_median_s:g}) must be above 0 and at most"
                f" pause_mean_s ({self.pause_mean_s:g})"
            )
        if self.max_prompt_tokens < 1:
            raise ConfigError(f"max_prompt_tokens is {self.max_prompt_tokens}: at least 1")

    def pauses(self, rng: np.random.Generator, count: int) -> list[float]:
        """Return `count` pauses in whole microseconds."""
        sigma = np.sqrt(2 * np.log(self.pause_mean_s / self.pause_median_s))
        drawn = rng.lognormal(np.log(self.pause_median_s), sigma, count)
        rounded: list[float] = np.maximum(drawn.round(6), 1e-6).tolist()
        return rounded


ONE_TURN = Sessions(Fixed(1), Fixed(1), 1.0, 1.0, max_prompt_tokens=2**62)


class Contents:
    """Ids of prompts' contents, so that equal prefixes have equal ids."""

    def __init__(self, seed: int, system: SystemPrompts | None, num_sessions: int) -> None:
        self._system_tokens = 0 if system is None else system.tokens
        self._shared_blocks = self._system_tokens // BLOCK_TOKENS
        count = 1 if system is None else system.count
        weights = np.arange(1, count + 1, dtype=np.float64) ** -(system.exponent if system else 0)
        rng = stream(seed, "system prompts")
        self._which: list[int] = rng.choice(count, num_sessions, p=weights / weights.sum()).tolist()
        self._next = count * self._shared_blocks

    def begin(self, session: int, num_tokens: int) -> list[int]:
        """Return the ids of a first prompt: its system prompt's, then new ones."""
        first = self._which[session] * self._shared_blocks
        ids = list(range(first, first + min(self._shared_blocks, num_tokens // BLOCK_TOKENS)))
        return self.go_on(ids, len(ids) * BLOCK_TOKENS, num_tokens)

    def go_on(self, ids: list[int], num_known_tokens: int, num_tokens: int) -> list[int]:
        """Return the ids of a prompt that begins with `num_known_tokens` identified by `ids`."""
        kept = ids[: num_known_tokens // BLOCK_TOKENS]
        num_new = num_tokens // BLOCK_TOKENS - len(kept)
        self._next += num_new
        return [*kept, *range(self._next - num_new, self._next)]


def session_rows(
    seed: int,
    starts_s: list[float],
    prompts: list[int],
    sessions: Sessions | None,
    output: Lengths,
    system: SystemPrompts | None,
) -> Iterator[tuple[int, TraceRequest]]:
    """Yield the turns of every session with the number of the session, session by session.

    A later turn's `arrival_s` is the earliest possible: as if answers took no time.
    """
    plan, count = sessions or ONE_TURN, len(starts_s)
    turns = plan.turns.draw(stream(seed, "turns"), count).tolist()
    total = sum(turns)
    outputs = output.draw(stream(seed, "output lengths"), total).tolist()
    followups = plan.followup.draw(stream(seed, "followups"), total).tolist()
    pauses = plan.pauses(stream(seed, "pauses"), total)
    named = sessions is not None or system is not None
    contents = Contents(seed, system, count)
    system_tokens = 0 if system is None else system.tokens
    row = 0
    for session, (start_s, first, num_turns) in enumerate(zip(starts_s, prompts, turns, strict=True)):
        arrival_s, tokens = start_s, first + system_tokens
        ids = contents.begin(session, tokens) if named else []
        previous: tuple[str, ...] = ()
        for turn in range(num_turns):
            name = f"s{session}.{turn}"
            if turn and tokens > plan.max_prompt_tokens:
                row += num_turns - turn
                break
            yield (
                session,
                TraceRequest(
                    name,
                    arrival_s,
                    num_prompt_tokens=tokens,
                    num_output_tokens=outputs[row],
                    hash_ids=tuple(ids) if named else None,
                    hash_block_tokens=BLOCK_TOKENS if named else 0,
                    session=f"s{session}" if sessions else None,
                    after=previous,
                    pause_s=pauses[row] if previous else 0.0,
                ),
            )
            said = tokens + outputs[row]
            known, tokens = tokens, said + followups[row]
            if named:
                ids = contents.go_on(ids, known, tokens)
            row, previous = row + 1, (name,)
            if turn + 1 < num_turns:
                arrival_s = round(arrival_s + pauses[row], 6)


@dataclass(frozen=True, slots=True)
class Tenant(Described):
    """Tenant: its share of the sessions, its priority, and its latency limits."""

    name: str
    share: float
    priority: int = 0
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None
    slo_e2e_s: float | None = None

    def __post_init__(self) -> None:
        check_positive(self, "share")
        for name in ("slo_ttft_s", "slo_tpot_s", "slo_e2e_s"):
            if getattr(self, name) is not None:
                check_positive(self, name)


@dataclass(frozen=True, slots=True)
class Workload(Described):
    """Arrivals within `duration_s`, each of which begins a session, or a single request without
    `sessions`.
    """

    duration_s: float
    arrivals: Arrivals
    prompt: Lengths
    output: Lengths
    sessions: Sessions | None = None
    system_prompts: SystemPrompts | None = None
    tenants: tuple[Tenant, ...] = ()

    def __post_init__(self) -> None:
        check_positive(self, "duration_s")
        if self.duration_s > MAX_ARRIVAL_S:
            raise ConfigError(f"duration_s is {self.duration_s}: at most {MAX_ARRIVAL_S:g}")
        names = [tenant.name for tenant in self.tenants]
        if len(set(names)) < len(names):
            raise ConfigError(f"tenants have the names {', '.join(names)}: each needs its own")

    @property
    def hash_block_tokens(self) -> int:
        """Tokens per id of the prompts' contents; 0 if nothing repeats."""
        return BLOCK_TOKENS if self.sessions or self.system_prompts else 0

    @property
    def tenant_names(self) -> set[str]:
        """Names of its tenants."""
        return {tenant.name for tenant in self.tenants}

    @property
    def repeats(self) -> bool:
        """Whether every seed gives the same requests, as with constant gaps and lengths."""
        return self.requests(0) == self.requests(1)

    def requests(self, seed: int) -> list[TraceRequest]:
        """Return the requests for a seed in order of arrival, times in whole microseconds."""
        times = self.arrivals.times(stream(seed, "arrivals"), self.duration_s).round(6)
        times = times[times < self.duration_s]
        prompts = self.prompt.draw(stream(seed, "prompt lengths"), len(times)).tolist()
        rows = session_rows(seed, times.tolist(), prompts, self.sessions, self.output, self.system_prompts)
        if self.tenants:
            owners = self._owners(seed, len(times))
            rows = (
                (session, _owned(row, t)) for session, row in rows for t in (self.tenants[owners[session]],)
            )
        ordered = sorted(rows, key=lambda row: (row[1].arrival_s, row[0]))
        if self.sessions is not None:
            return [row for _, row in ordered]
        return [row._replace(request_id=default_id(i)) for i, (_, row) in enumerate(ordered)]

    def _owners(self, seed: int, count: int) -> list[int]:
        shares = np.array([tenant.share for tenant in self.tenants])
        owners: list[int] = (
            stream(seed, "tenants").choice(len(shares), count, p=shares / shares.sum()).tolist()
        )
        return owners


def _owned(row: TraceRequest, tenant: Tenant) -> TraceRequest:
    return row._replace(
        tenant=tenant.name,
        priority=tenant.priority,
        slo_ttft_s=tenant.slo_ttft_s,
        slo_tpot_s=tenant.slo_tpot_s,
        slo_e2e_s=tenant.slo_e2e_s,
    )


@dataclass(frozen=True, slots=True)
class Scaled(Described):
    """Recorded trace at `rate_scale` times the rate, with prompts and outputs scaled in length.

    Prefixes that are equal stay equal. `from_s`, `until_s`, `sample_sessions` and `max_idle_s` select the
    part of the trace, and `columns` the columns of a table.
    """

    trace: str
    rate_scale: float = 1.0
    prompt_scale: float = 1.0
    output_scale: float = 1.0
    limit: int | None = None
    tokenizer: str | None = None
    columns: str | None = None
    from_s: float = 0.0
    until_s: float | None = None
    sample_sessions: float = 1.0
    max_idle_s: float | None = None

    def __post_init__(self) -> None:
        check_positive(self, "rate_scale", "prompt_scale", "output_scale", "sample_sessions")
        for name in ("limit", "until_s", "max_idle_s"):
            if getattr(self, name) is not None:
                check_positive(self, name)
        if self.from_s < 0 or self.sample_sessions > 1:
            raise ConfigError(
                f"from_s is {self.from_s:g}, sample_sessions {self.sample_sessions:g}: from_s is at least 0,"
                " sample_sessions at most 1"
            )

    @property
    def source(self) -> Trace:
        """Selected part of the trace, as recorded."""
        part = TracePart(self.from_s, self.until_s, self.sample_sessions, self.max_idle_s)
        return read_trace(self.trace, self.tokenizer, columns=self.columns, part=part)

    @property
    def hash_block_tokens(self) -> int:
        """Tokens per id of the prompts' contents; 0 if they are unknown."""
        return max((row.hash_block_tokens for row in self.requests(0)), default=0)

    @property
    def tenant_names(self) -> set[str]:
        """Names of the tenants in the trace."""
        return {row.tenant for row in self.requests(0) if row.tenant is not None}

    @property
    def is_plain(self) -> bool:
        """Whether this is the trace as it was recorded."""
        return self.rate_scale == self.prompt_scale == self.output_scale == 1

    @property
    def repeats(self) -> bool:
        """True, because every seed gives the same requests."""
        return True

    def requests(self, seed: int) -> list[TraceRequest]:
        """Return the scaled requests, the same for every seed."""
        rows: Iterable[TraceRequest] = islice(self.source, self.limit)
        if self.prompt_scale != 1:
            rows = scaled_prompts(rows, self.prompt_scale)
        return list(rows) if self.is_plain else [self._scaled(row) for row in rows]

    def _scaled(self, row: TraceRequest) -> TraceRequest:
        return row._replace(
            arrival_s=round(row.arrival_s / self.rate_scale, 9),
            num_output_tokens=max(round(row.num_output_tokens * self.output_scale), 1),
        )
