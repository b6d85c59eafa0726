"""The file of a measured engine: a cost file (`sundog.sim.cost.cost_file`) with more.

`[engine]` says what a simulation needs to know besides, so that none must be told of a model or GPU; `[host]`
what its scheduler and HTTP front end add to the steps, `[hops]` what the way to its process and back takes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from sundog.actors.config.hop_costs import NO_HOPS, HopCosts
from sundog.actors.core.config import ConfigError
from sundog.sim.cost.calibrated import InRange
from sundog.sim.cost.composed import ScaledCost
from sundog.sim.cost.cost_file import HOST, cost_of
from sundog.sim.cost.overhead import HostOverhead, WithOverhead
from sundog.sim.cost.work import CostModel
from sundog.sim.files.toml import checked, read_toml

ENGINE, HOPS = "engine", "hops"
Count = Annotated[int, Field(ge=1, le=2**40)]
Seconds = Annotated[float, Field(ge=0, lt=1e6)]


@dataclass(frozen=True, slots=True)
class MeasuredEngine:
    """The engine's limits; `num_gpu_blocks` includes the null block, `kv_token_bytes` may be unknown (0)."""

    model: str
    num_gpu_blocks: Count
    block_size: Count
    max_model_len: Count
    max_num_batched_tokens: Count
    max_num_seqs: Count
    async_scheduling: bool
    kv_token_bytes: Annotated[int, Field(ge=0, le=2**40)] = 0


@dataclass(frozen=True, slots=True)
class HostShare:
    """Seconds that a server adds to a step, to each token sampled in it, to each chunk of a prompt in it,
    and to each request in front of it. The engine's own time is `slowdown` times what it is alone."""

    step_s: Seconds = 0.0
    token_s: Seconds = 0.0
    chunk_s: Seconds = 0.0
    request_s: Seconds = 0.0
    slowdown: Annotated[float, Field(ge=1, lt=1e3)] = 1.0

    def served(self, cost: CostModel) -> WithOverhead:
        """The steps of `cost` as they are served. They were timed from end to end, so that nothing of it
        overlaps with them, whether steps are planned ahead or not."""
        overhead = HostOverhead(
            step_s=self.step_s, token_s=self.token_s, chunk_s=self.chunk_s, request_s=self.request_s
        )
        return WithOverhead(cost if self.slowdown == 1 else ScaledCost(cost, self.slowdown), overhead)


def front_end_s(path: Path | str) -> float | None:
    """Seconds in front of a request, where a cost file says them; ConfigError names the file and the key."""
    host = read_toml(path).get(HOST)
    return None if host is None else checked(HostShare, host, path, (HOST,)).request_s


@dataclass(frozen=True, slots=True)
class Profile:
    """The file of a measured engine."""

    cost: InRange
    engine: MeasuredEngine
    host: HostShare
    hops: HopCosts = NO_HOPS


def read_profile(path: Path | str) -> Profile | None:
    """The engine in a cost file, None if it tells of none; ConfigError names the file and the key."""
    values = read_toml(path)
    if ENGINE not in values:
        return None
    cost = cost_of(values, path)
    if not isinstance(cost, InRange):
        raise ConfigError(f"cost {path}: the table [range] is missing: is it of `sundog calibrate MODEL`?")
    engine = checked(MeasuredEngine, values[ENGINE], path, (ENGINE,))
    host = checked(HostShare, values.get(HOST, {}), path, (HOST,))
    return Profile(cost, engine, host, checked(HopCosts, values.get(HOPS, {}), path, (HOPS,)))
