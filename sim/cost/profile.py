"""The file of a measured engine: a calibrated cost file that also says what the engine is.

`[engine]` says what a simulation needs to know of it besides, so that none must be told of a model or GPU;
`[host]` what its scheduler and HTTP front end add to the steps, `[hops]` what the way to its process and back
takes. `[measured]` is for people.
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from actors.config.hop_costs import NO_HOPS, HopCosts
from actors.core.config import ConfigError
from actors.core.records import dataclass
from sim.cost.cost_file import cost_of
from sim.cost.in_range import InRange
from sim.cost.overhead import HostOverhead, WithOverhead
from sim.cost.scaled import Scaled
from sim.cost.work import CostModel
from sim.files.toml import checked, read_toml

ENGINE, HOST, HOPS = "engine", "host", "hops"
Count = Annotated[int, Field(ge=1, le=2**40)]
Seconds = Annotated[float, Field(ge=0, lt=1e6)]


@dataclass(frozen=True, slots=True)
class MeasuredEngine:
    """The engine's limits; `num_gpu_blocks` includes the null block."""

    model: str
    num_gpu_blocks: Count
    block_size: Count
    max_model_len: Count
    max_num_batched_tokens: Count
    max_num_seqs: Count
    async_scheduling: bool


@dataclass(frozen=True, slots=True)
class Host:
    """What a server adds: seconds to a step, to each token sampled in it, to each chunk of a prompt in it,
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
        return WithOverhead(cost if self.slowdown == 1 else Scaled(cost, self.slowdown), overhead)


@dataclass(frozen=True, slots=True)
class Profile:
    """A measured engine."""

    cost: InRange
    engine: MeasuredEngine
    host: Host
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
    host = checked(Host, values.get(HOST, {}), path, (HOST,))
    return Profile(cost, engine, host, checked(HopCosts, values.get(HOPS, {}), path, (HOPS,)))
