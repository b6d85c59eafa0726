"""Several populations in one workload, each with its own arrivals, lengths, sessions and service level.

Each has random streams of its own, so that another population, or another rate of one, leaves the rest
unchanged. Traces are merged by the same rules.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sundog.actors.core.config import ConfigError
from sundog.sim.trace.record import MAX_ARRIVAL_S, TraceRequest
from sundog.sim.workload.distributions import Arrivals, Described, Lengths, check_positive
from sundog.sim.workload.spec import BLOCK_TOKENS, Sessions, SystemPrompts, Tenant, Workload


@dataclass(frozen=True, slots=True)
class Population(Described):
    """Population of users: its requests and their service level. Its name is their tenant."""

    name: str
    arrivals: Arrivals
    prompt: Lengths
    output: Lengths
    sessions: Sessions | None = None
    system_prompts: SystemPrompts | None = None
    priority: int = 0
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None
    slo_e2e_s: float | None = None

    def workload(self, duration_s: float) -> Workload:
        """Return the workload of these requests alone."""
        tenant = Tenant(
            self.name,
            1.0,
            priority=self.priority,
            slo_ttft_s=self.slo_ttft_s,
            slo_tpot_s=self.slo_tpot_s,
            slo_e2e_s=self.slo_e2e_s,
        )
        return Workload(
            duration_s,
            self.arrivals,
            prompt=self.prompt,
            output=self.output,
            sessions=self.sessions,
            system_prompts=self.system_prompts,
            tenants=(tenant,),
        )


@dataclass(frozen=True, slots=True)
class Mixture(Described):
    """Populations that arrive at the same server within `duration_s`."""

    duration_s: float
    populations: tuple[Population, ...]

    def __post_init__(self) -> None:
        check_positive(self, "duration_s")
        if self.duration_s > MAX_ARRIVAL_S:
            raise ConfigError(f"duration_s is {self.duration_s}: at most {MAX_ARRIVAL_S:g}")
        names = [each.name for each in self.populations]
        if not names or len(set(names)) < len(names) or not all(names):
            raise ConfigError(f"populations have the names {', '.join(names) or 'none'}: each needs its own")
        for each in self.populations:
            each.workload(self.duration_s)  # Its tenant's limits are checked.

    @property
    def hash_block_tokens(self) -> int:
        """Tokens per id of the prompts' contents; 0 if nothing repeats."""
        return BLOCK_TOKENS if any(each.sessions or each.system_prompts for each in self.populations) else 0

    @property
    def tenant_names(self) -> set[str]:
        """Names of its populations."""
        return {each.name for each in self.populations}

    @property
    def repeats(self) -> bool:
        """Whether every seed gives the same requests."""
        return self.requests(0) == self.requests(1)

    def requests(self, seed: int) -> list[TraceRequest]:
        """Return all requests for a seed in order of arrival, times in whole microseconds."""
        return merged(
            [
                (each.name, each.workload(self.duration_s).requests(_own(seed, each.name)))
                for each in self.populations
            ]
        )


def _own(seed: int, name: str) -> int:
    return int(np.random.SeedSequence(seed, spawn_key=tuple(name.encode())).generate_state(1)[0])


def merged(parts: Sequence[tuple[str, Sequence[TraceRequest]]]) -> list[TraceRequest]:
    """Merge named requests in order of arrival; at equal times the earlier part is first.

    Ids and sessions begin with the part's name, and a request without a tenant gets it for one. Prompts of
    different parts share nothing. Raises ConfigError for two block lengths of contents.
    """
    sizes = {row.hash_block_tokens for _, rows in parts for row in rows if row.hash_ids is not None}
    if len(sizes) > 1:
        raise ConfigError(
            "the requests hash their contents in blocks of"
            f" {' and '.join(map(str, sorted(sizes)))} tokens: they must be of one length"
        )
    found: list[tuple[float, int, TraceRequest]] = []
    shift = 0
    for number, (name, rows) in enumerate(parts):
        largest = -1
        for row in rows:
            ids = row.hash_ids
            if ids:
                largest = max(largest, max(ids))
                ids = tuple(each + shift for each in ids)
            changed = row._replace(
                request_id=f"{name}.{row.request_id}",
                hash_ids=ids,
                tenant=name if row.tenant is None else row.tenant,
                session=None if row.session is None else f"{name}.{row.session}",
                after=tuple(f"{name}.{each}" for each in row.after),
            )
            found.append((row.arrival_s, number, changed))
        shift += largest + 1
    found.sort(key=lambda each: each[:2])
    return [row for _, _, row in found]
