"""File of a measured engine: a cost file (`sundog.sim.cost.cost_file`) with further tables.

`[engine]` has the limits that a simulation needs, so that no model or GPU must be given; `[host]` what its
scheduler and HTTP front end add to steps, `[hops]` the latency to its process and back.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from sundog.actors.config.cost_values import MOST_PROCESSES
from sundog.actors.config.front_costs import FrontCosts
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
    """Limits of the engine; `num_gpu_blocks` includes the null block, `kv_token_bytes` may be unknown (0)."""

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
    """Seconds that a server adds to a step, to each token sampled in it, and to each chunk of a prompt in it.

    Before the engine, each of its API processes takes `request_s` for a request, `prompt_token_s` more for
    each token of its prompt, `response_s` for its response before it takes another request, and
    `output_token_s` for each token that it streams, one after another. A request is read in `api_stages`,
    between which others take their turns. The engine's own time is `slowdown` times that of the engine alone.
    """

    step_s: Seconds = 0.0
    token_s: Seconds = 0.0
    chunk_s: Seconds = 0.0
    request_s: Annotated[float, Field(ge=0, le=10)] = 0.0
    slowdown: Annotated[float, Field(ge=1, lt=1e3)] = 1.0
    response_s: Annotated[float, Field(ge=0, le=10)] = 0.0
    prompt_token_s: Annotated[float, Field(ge=0, le=10)] = 0.0
    output_token_s: Annotated[float, Field(ge=0, le=10)] = 0.0
    api_processes: Annotated[int, Field(ge=1, le=MOST_PROCESSES)] = 1
    api_stages: Annotated[int, Field(ge=1, le=MOST_PROCESSES)] = 1

    @property
    def front(self) -> FrontCosts:
        """Costs of the API processes."""
        return FrontCosts(
            request=self.request_s,
            response=self.response_s,
            prompt_token=self.prompt_token_s,
            output_token=self.output_token_s,
            processes=self.api_processes,
            stages=self.api_stages,
        )

    def served(self, cost: CostModel) -> WithOverhead:
        """Return the steps of `cost` in a server. They were timed from end to end, so that the host's
        share never overlaps with them.
        """
        overhead = HostOverhead(
            step_s=self.step_s, token_s=self.token_s, chunk_s=self.chunk_s, front=self.front
        )
        return WithOverhead(cost if self.slowdown == 1 else ScaledCost(cost, self.slowdown), overhead)


def front_costs(path: Path | str) -> FrontCosts | None:
    """Return the API processes, if the cost file has them; ConfigError names the file and the key."""
    host = read_toml(path).get(HOST)
    return None if host is None else checked(HostShare, host, path, (HOST,)).front


def hop_costs(path: Path | str) -> HopCosts:
    """Return the latency to the engine and back, if the cost file has it; ConfigError names the file and
    the key.
    """
    hops = read_toml(path).get(HOPS)
    return NO_HOPS if hops is None else checked(HopCosts, hops, path, (HOPS,))


@dataclass(frozen=True, slots=True)
class Profile:
    """Contents of a measured engine's file."""

    cost: InRange
    engine: MeasuredEngine
    host: HostShare
    hops: HopCosts = NO_HOPS


def read_profile(path: Path | str) -> Profile | None:
    """Return the engine in a cost file, None if there is none; ConfigError names the file and the key."""
    values = read_toml(path)
    if ENGINE not in values:
        return None
    cost = cost_of(values, path)
    if not isinstance(cost, InRange):
        raise ConfigError(
            f"cost {path}: the table [range] is missing: was it written by `sundog calibrate MODEL`?"
        )
    engine = checked(MeasuredEngine, values[ENGINE], path, (ENGINE,))
    host = checked(HostShare, values.get(HOST, {}), path, (HOST,))
    return Profile(cost, engine, host, checked(HopCosts, values.get(HOPS, {}), path, (HOPS,)))
