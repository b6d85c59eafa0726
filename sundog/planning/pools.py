"""Fleets of two pools as candidates of a plan: which machines, and in which proportion.

What a prompt and a token of an answer take of an engine, by its cost model, says how many engines of a kind
the traffic needs for prompts and how many for answers. The pairs of machines that would then cost least are
candidates; a candidate's fleets grow from one engine of each kind, always the kind that is shorter of its
need. Nothing rests on these estimates but which fleets are tried: that one holds, trials say.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from sundog.options.simulation import TargetOptions
from sundog.planning.search import Candidate
from sundog.planning.trial import FleetTrial

if TYPE_CHECKING:
    from sim.figures.named import Objective
    from sim.figures.sweep.cells import Settings
    from sim.trace.record import TraceRequest
    from sundog.builds.simulated import Simulated

PAIRS = 2
"""The pairs of machines that are tried of each GPU and each grid point of other settings."""
SAMPLE = 64
"""Prompts, from the shortest to the longest, whose cost stands for that of all."""
MACHINE = ("gpu", "tensor_parallel_size", "max_model_len")
"""Settings that say what machine it is; those that pools do not share, but for the last."""


class Machine(NamedTuple):
    """An engine that could do whole requests, and the settings and price of a replica."""

    candidate: Candidate
    simulated: "Simulated"

    @property
    def ranks(self) -> int:
        return int(self.candidate.settings["tensor_parallel_size"])


@dataclass(slots=True)
class PoolsCandidate(Candidate):
    """Engines that prefill beside such that decode; `sizes` has how many of each, the n-th fleet at n - 1."""

    prefill: str = ""
    decode: str = ""
    """The two pools as `--pool` says them, without their replicas."""
    prices: tuple[float, float] = (0.0, 0.0)
    gpus: tuple[int, int] = (0, 0)
    ranks: tuple[int, int] = (1, 1)
    """The price, the GPUs and the tensor-parallel ranks of an engine of each pool."""
    sizes: tuple[tuple[int, int], ...] = ()

    def engines(self, count: int, spare: int) -> tuple[int, int]:
        """Return the engines of each pool in the `count`-th fleet, `spare` ones of each included."""
        num_prefill, num_decode = self.sizes[count - 1]
        return num_prefill + spare, num_decode + spare

    def pools(self, count: int, spare: int) -> tuple[str, str]:
        """Return the two pools of a fleet, as `--pool` takes them."""
        num_prefill, num_decode = self.engines(count, spare)
        return f"prefill={self.prefill}x{num_prefill}", f"decode={self.decode}x{num_decode}"

    def settings_of(self, count: int, spare: int) -> "Settings":
        return {**self.settings, "pool": "+".join(self.pools(count, spare))}

    def replicas_of(self, count: int, spare: int) -> int:
        return sum(self.engines(count, spare))

    def gpus_of(self, count: int, spare: int) -> int:
        pairs = zip(self.gpus, self.engines(count, spare), strict=True)
        return sum(gpus * number for gpus, number in pairs)

    def price_of(self, count: int) -> float:
        pairs = zip(self.prices, self.engines(count, self.spare), strict=True)
        return sum(price * number for price, number in pairs)

    def most_below(self, price: float) -> int:
        return bisect_left(range(1, self.most + 1), price, key=self.price_of)

    def trial(self, count: int, seed: int = 0, **changes: Any) -> FleetTrial:
        default = TargetOptions().gpu  # the pools say which GPUs, and how many ranks
        settings = {**self.settings_of(count, 0), "gpu": default, "tensor_parallel_size": 1}
        return FleetTrial(settings, 1, seed, **changes)


def smaller_by_one(fleet: PoolsCandidate) -> list[Candidate]:
    """The fleets with an engine less of one kind than the one that holds, each a candidate of its own."""
    count = fleet.holding or 1
    num_prefill, num_decode = fleet.sizes[count - 1]
    found: list[Candidate] = []
    for size in ((num_prefill - 1, num_decode), (num_prefill, num_decode - 1)):
        if min(size) and size not in fleet.sizes:
            fresh = replace(fleet, sizes=(size,), most=1, is_variant=True, tried={}, failing=0, holding=None)
            found.append(replace(fresh, is_found=False, is_verified=False))
    return found


def pools_of(
    machines: Iterable[Machine],
    requests: "Sequence[TraceRequest]",
    objectives: "Sequence[Objective]",
    max_gpus: int,
) -> list[PoolsCandidate]:
    """Return the pairs of machines that may cost least, by GPU and other settings.

    None where all requests arrive at once.
    """
    span_s = requests[-1].arrival_s - requests[0].arrival_s
    if not span_s:
        return []
    groups: dict[str, list[Machine]] = {}
    for machine in machines:
        settings = machine.candidate.settings
        further = [(name, value) for name, value in settings.items() if name not in MACHINE[1:]]
        groups.setdefault(repr(further), []).append(machine)
    found: list[PoolsCandidate] = []
    for group in groups.values():
        prefill = {each.ranks: _prefill_s(each, requests, objectives) / span_s for each in group}
        decode = {each.ranks: _decode_s(each, requests, objectives) / span_s for each in group}
        pairs = [(_pair(a, b, prefill[a.ranks], decode[b.ranks], max_gpus)) for a, b in product(group, group)]
        able = [pair for pair in pairs if pair is not None]
        found += [each for _, each in sorted(able, key=lambda pair: pair[0])[:PAIRS]]
    return found


def _pair(
    first: Machine, second: Machine, num_prefill: float, num_decode: float, max_gpus: int
) -> tuple[float, PoolsCandidate] | None:
    """Return what two machines may cost for these needs, and their candidate; None if they are too few."""
    one, two = first.candidate, second.candidate
    if math.inf in (num_prefill, num_decode):
        return None
    spare, gpus = one.spare, (one.num_gpus, two.num_gpus)
    sizes = tuple(_sizes(num_prefill, num_decode, gpus, max_gpus - spare * sum(gpus)))
    if not sizes:
        return None
    lengths = [each.settings["max_model_len"] for each in (one, two) if "max_model_len" in each.settings]
    settings = {name: value for name, value in two.settings.items() if name not in MACHINE}
    gpu = two.settings["gpu"]
    candidate = PoolsCandidate(
        settings | ({"max_model_len": max(lengths)} if lengths else {}),
        0.0,
        0,
        len(sizes),
        spare,
        prefill=f"{gpu}:tp{first.ranks}",
        decode=f"{gpu}:tp{second.ranks}",
        prices=(one.price, two.price),
        gpus=gpus,
        ranks=(first.ranks, second.ranks),
        sizes=sizes,
    )
    return max(num_prefill, 1.0) * one.price + max(num_decode, 1.0) * two.price, candidate


def _sizes(
    num_prefill: float, num_decode: float, gpus: tuple[int, int], max_gpus: int
) -> Iterator[tuple[int, int]]:
    """Yield fleets from one engine of each kind on; the kind grows that has the smaller part of its need."""
    prefill = decode = 1
    while prefill * gpus[0] + decode * gpus[1] <= max_gpus:
        yield prefill, decode
        if prefill * num_decode <= decode * num_prefill:
            prefill += 1
        else:
            decode += 1


def _limit_s(objectives: "Sequence[Objective]", latency: str) -> float:
    """Return the least limit on a latency of all requests or of a tenant's; infinite if there is none."""
    return min((each.below_s for each in objectives if each.metric.figure == latency), default=math.inf)


def _prefill_s(
    machine: Machine, requests: "Sequence[TraceRequest]", objectives: "Sequence[Objective]"
) -> float:
    """Return the seconds that all prompts take one after another; infinite if half of them miss a limit."""
    from sim.cost.work import StepWork

    lengths = sorted(row.num_prompt_tokens for row in requests)
    sample = lengths[:: math.ceil(len(lengths) / SAMPLE)]
    cost, limit = machine.simulated.cost, machine.simulated.config.scheduler.max_num_batched_tokens
    seconds = []
    for length in sample:
        starts = range(0, length, limit)
        chunks = [(min(limit, length - start), start) for start in starts]
        seconds.append(sum(cost.step_s(StepWork(0, 0, (chunk,), 1)) for chunk in chunks))
    if seconds[len(seconds) // 2] > _limit_s(objectives, "ttft_s"):
        return math.inf
    return sum(seconds) / len(seconds) * len(requests)


def _decode_s(
    machine: Machine, requests: "Sequence[TraceRequest]", objectives: "Sequence[Objective]"
) -> float:
    """Return the seconds of all decodes, in batches as large as memory and the limit on TPOT let."""
    from sim.cost.work import StepWork

    scheduler, capacity = machine.simulated.config.scheduler, machine.simulated.capacity
    tokens = sum(row.num_output_tokens for row in requests)
    context = sum(row.num_prompt_tokens + row.num_output_tokens / 2 for row in requests) / len(requests)
    most = min(scheduler.max_num_seqs, int(capacity.num_blocks * capacity.block_size / context))
    limit_s = _limit_s(objectives, "tpot_s")

    def step_s(batch: int) -> float:
        return machine.simulated.cost.step_s(StepWork(batch, int(batch * context), (), batch))

    batch = bisect_left(range(1, most + 1), limit_s, key=step_s)
    return tokens / batch * step_s(batch) if batch else math.inf
