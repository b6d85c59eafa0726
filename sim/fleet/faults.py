"""Faults of a run: listed in a file, or sampled from a seed.

Kinds that `sundog emulate --inject` has, too, have its names (docs/fleets.md describes each). A file has any
number of `[[fault]]` tables, and may have a `[random]` one.
"""

import random
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sundog.actors.core.chance import drawn
from sundog.actors.core.config import ConfigError
from sundog.sim.files.toml import checked, read_toml
from sundog.sim.trace.record import TraceRequest

Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Replica = Annotated[int, Field(ge=0, lt=4096)]
START_S = 60.0
"""Seconds from a crash until an engine is up again, by default: the time to load a model."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DeadEngine(_Table):
    """Crash of an engine; it is up again `down_s` later, with an empty cache.

    Requests are still sent to it for `notice_s`, until the crash is noticed.
    """

    kind: Literal["dead-engine"]
    at_s: Seconds
    replica: Replica
    down_s: Seconds = START_S
    notice_s: Seconds = 0.0


class Straggler(_Table):
    """Slowdown: an engine's steps take `factor` times as long for a while."""

    kind: Literal["straggler"]
    at_s: Seconds
    for_s: Seconds
    replica: Replica
    factor: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


class SlowLink(_Table):
    """Slow link: an engine transfers KV at a share `part` of its bandwidth for a while; 0 cuts it off."""

    kind: Literal["slow-link"]
    at_s: Seconds
    for_s: Seconds
    replica: Replica
    part: Share


class LostTransfer(_Table):
    """Loss of a share of the transfers that end within a time span."""

    kind: Literal["lost-transfer"]
    at_s: Seconds = 0.0
    for_s: Seconds = 1e9
    rate: Share


class Cancellations(_Table):
    """Departure of a share of the waiting clients at one time."""

    kind: Literal["cancellations"]
    at_s: Seconds
    rate: Share


class Spike(_Table):
    """Burst of requests: each request within a time span arrives `factor` times, within a second."""

    kind: Literal["spike"]
    at_s: Seconds
    for_s: Seconds
    factor: Annotated[int, Field(ge=2, le=1000)]


class Retries(_Table):
    """Retries of failed or timed-out requests, `attempts` times at most, `wait_s` later."""

    kind: Literal["retries"]
    attempts: Annotated[int, Field(ge=1, le=100)] = 3
    wait_s: Seconds = 1.0


PlannedFault = DeadEngine | Straggler | SlowLink | LostTransfer | Cancellations | Spike | Retries


class RandomCrashes(_Table):
    """Repeated crashes of every engine, on average `mtbf_s` after it came up (exponential)."""

    mtbf_s: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
    down_s: Seconds = START_S
    until_s: Seconds


class FaultFile(_Table):
    """Tables of a faults file."""

    fault: tuple[Annotated[PlannedFault, Field(discriminator="kind")], ...] = ()
    random: RandomCrashes | None = None


def read_faults(path: str | Path) -> FaultFile:
    """Read a faults file; raises ConfigError that names the key."""
    return checked(FaultFile, read_toml(path), path)


def drawn_faults(
    file: FaultFile, num_replicas: int, seed: int, *, has_links: bool
) -> tuple[PlannedFault, ...]:
    """Return the faults of a run: those in the file, and crashes that are sampled for each replica from the
    seed.

    Raises ConfigError for a replica, or links between engines, that do not exist.
    """
    for fault in file.fault:
        replica = getattr(fault, "replica", 0)
        if replica >= num_replicas:
            raise ConfigError(
                f"a fault of kind {fault.kind} is of replica {replica}: give 0 to {num_replicas - 1}"
            )
        if isinstance(fault, SlowLink | LostTransfer) and not has_links:
            raise ConfigError(
                f"a fault of kind {fault.kind} applies to links between pools: give --pool prefill=… and "
                "decode=…,"
                " or leave it out"
            )
        if isinstance(fault, DeadEngine) and fault.notice_s > fault.down_s:
            raise ConfigError(
                f"notice_s of a dead-engine is {fault.notice_s:g}: give at most its down_s, {fault.down_s:g}"
            )
    found: list[PlannedFault] = list(file.fault)
    if (crashes := file.random) is not None:
        for replica in range(num_replicas):
            rng = random.Random(f"{seed}:crash:{replica}")
            at_s = rng.expovariate(1 / crashes.mtbf_s)
            while at_s < crashes.until_s:
                found.append(
                    DeadEngine(kind="dead-engine", at_s=at_s, replica=replica, down_s=crashes.down_s)
                )
                at_s += crashes.down_s + rng.expovariate(1 / crashes.mtbf_s)
    return tuple(sorted(found, key=lambda fault: getattr(fault, "at_s", 0.0)))


def spiked(rows: Iterable[TraceRequest], spikes: Iterable[Spike], seed: int) -> Iterator[TraceRequest]:
    """Yield the rows with copies of those that arrive in a spike, in order of arrival."""
    spikes = tuple(spikes)
    later: list[tuple[float, str, TraceRequest]] = []
    for row in rows:
        while later and later[0][0] <= row.arrival_s:
            yield heappop(later)[2]
        yield row
        for which, spike in enumerate(spikes):
            if spike.at_s <= row.arrival_s < spike.at_s + spike.for_s:
                for number in range(1, spike.factor):
                    name = f"{row.request_id}+{which}.{number}"
                    at_s = row.arrival_s + drawn(seed, ["spike", name])
                    copy = row._replace(request_id=name, arrival_s=at_s, session=None, after=(), pause_s=0.0)
                    heappush(later, (at_s, name, copy))
    while later:
        yield heappop(later)[2]
