"""The file of a measured engine: a calibrated cost file that also says what the engine is.

`[engine]` says what a simulation needs to know of it besides, so that none must be told of a model or GPU;
`[host]` what its scheduler and HTTP front end add to the steps. `[measured]` is for people.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from actors.core.config import ConfigError
from sim.cost.cost_file import cost_of
from sim.cost.in_range import InRange
from sim.cost.overhead import HostOverhead
from sim.files.toml import checked, read_toml

ENGINE, HOST, MEASURED = "engine", "host", "measured"
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
    """Seconds that the host adds to a step, to each token sampled in it, and to each request before it."""

    step_s: Seconds = 0.0
    token_s: Seconds = 0.0
    request_s: Seconds = 0.0

    def overhead(self, overlaps: bool) -> HostOverhead:
        """The same for a simulation; `overlaps` if steps are planned ahead."""
        return HostOverhead(**asdict(self), overlaps=overlaps)


@dataclass(frozen=True, slots=True)
class Profile:
    """A measured engine."""

    cost: InRange
    engine: MeasuredEngine
    host: Host


def read_profile(path: Path | str) -> Profile | None:
    """The engine in a cost file, None if it tells of none; ConfigError names the file and the key."""
    values = read_toml(path)
    if ENGINE not in values:
        return None
    cost = cost_of(values, path)
    if not isinstance(cost, InRange):
        raise ConfigError(f"cost {path}: the table [range] is missing: is it of `sundog calibrate MODEL`?")
    engine = checked(MeasuredEngine, values[ENGINE], path, (ENGINE,))
    return Profile(cost, engine, checked(Host, values.get(HOST, {}), path, (HOST,)))
