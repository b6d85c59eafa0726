"""A workload: arrivals, lengths, sessions, tenants; the same seed gives the same requests."""

from typing import ClassVar

import numpy as np
from pydantic import ConfigDict

from actors.core.config import ConfigError
from actors.core.records import dataclass
from sim.trace.record import MAX_ARRIVAL_S, TraceRequest, default_id
from sim.workload.arrivals import Arrivals, check_positive
from sim.workload.lengths import STRICT, Lengths
from sim.workload.sessions import BLOCK_TOKENS, Sessions, SystemPrompts, session_rows
from sim.workload.streams import stream


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whose a share of the sessions are, how urgent, and what times they want."""

    name: str
    share: float
    priority: int = 0
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None
    slo_e2e_s: float | None = None
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        check_positive(self, "share")
        for name in ("slo_ttft_s", "slo_tpot_s", "slo_e2e_s"):
            if getattr(self, name) is not None:
                check_positive(self, name)


@dataclass(frozen=True, slots=True)
class Workload:
    """Each arrival within `duration_s` begins a session, of one request without `sessions`."""

    duration_s: float
    arrivals: Arrivals
    prompt: Lengths
    output: Lengths
    sessions: Sessions | None = None
    system_prompts: SystemPrompts | None = None
    tenants: tuple[Tenant, ...] = ()
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        check_positive(self, "duration_s")
        if self.duration_s > MAX_ARRIVAL_S:
            raise ConfigError(f"duration_s is {self.duration_s}: at most {MAX_ARRIVAL_S:g}")
        names = [tenant.name for tenant in self.tenants]
        if len(set(names)) < len(names):
            raise ConfigError(f"tenants have the names {', '.join(names)}: each needs its own")

    @property
    def hash_block_tokens(self) -> int:
        """Tokens per id of the prompts' contents; 0 where nothing repeats."""
        return BLOCK_TOKENS if self.sessions or self.system_prompts else 0

    @property
    def repeats(self) -> bool:
        """Whether every seed gives the same requests: a metronome of fixed lengths, say."""
        return self.requests(0) == self.requests(1)

    def requests(self, seed: int) -> list[TraceRequest]:
        """The requests for a seed in order of arrival, instants in whole microseconds."""
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
        """Each session's tenant."""
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
