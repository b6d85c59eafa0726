"""Fleets of two pools as candidates of a plan: their machines, and the ratio between the pools.

The cost model's time per prompt and per output token determines how many engines of a kind the traffic needs
for prompts and for answers. A machine is excluded if a prompt without any other misses its limit, and a fleet
if it has too few engines to finish the work in time for the last request. The cheapest pairs of machines by
this estimate are candidates, as are two equal machines; a candidate's fleets grow from the smallest, always
by the pool with the larger lack. Trials then test whether a fleet meets the objectives.
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
    from sundog.sim.deployment.record import Simulated
    from sundog.sim.figures.named import Objective
    from sundog.sim.figures.sweep.cells import Settings
    from sundog.sim.trace.record import TraceRequest

PAIRS = 4
"""Pairs of machines to try for each grid point of other settings."""
ROLES = "prefill", "decode"
SAMPLE = 64
"""Number of prompts, evenly chosen from the shortest to the longest, whose mean cost stands for all."""
MACHINE = ("gpu", "tensor_parallel_size", "max_model_len")
"""Settings that define a machine. Each pool has its own, except for the last setting."""


class Need(NamedTuple):
    """Need for engines of a kind: the number that the traffic keeps fully busy, and the fewest that can
    suffice.
    """

    engines: float
    least: int


@dataclass(slots=True)
class PoolsCandidate(Candidate):
    """Candidate with prefilling and decoding engines; `sizes[n - 1]` has the numbers of each in the n-th
    fleet.
    """

    parts: tuple[Candidate, ...] = ()
    """Engine of each pool, as a candidate that serves whole requests."""
    sizes: tuple[tuple[int, int], ...] = ()
    least: tuple[int, int] = (1, 1)
    """Fewest engines of each kind in a fleet."""

    def engines(self, count: int, spare: int) -> tuple[int, int]:
        """Return the engines of each pool in the `count`-th fleet, including `spare` ones of each."""
        num_prefill, num_decode = self.sizes[count - 1]
        return num_prefill + spare, num_decode + spare

    def settings_of(self, count: int, spare: int) -> "Settings":
        pools = [
            f"{role}={part.settings['gpu']}:tp{part.settings['tensor_parallel_size']}x{number}"
            for role, part, number in zip(ROLES, self.parts, self.engines(count, spare), strict=True)
        ]
        return {**self.settings, "pool": "+".join(pools)}

    def replicas_of(self, count: int, spare: int) -> int:
        return sum(self.engines(count, spare))

    def gpus_of(self, count: int, spare: int) -> int:
        pairs = zip(self.parts, self.engines(count, spare), strict=True)
        return sum(part.num_gpus * number for part, number in pairs)

    def price_of(self, count: int) -> float:
        pairs = zip(self.parts, self.engines(count, self.spare), strict=True)
        return sum(part.price * number for part, number in pairs)

    def most_below(self, price: float) -> int:
        return bisect_left(range(1, self.most + 1), price, key=self.price_of)

    def trial(self, count: int, seed: int = 0, **changes: Any) -> FleetTrial:
        default = TargetOptions().gpu  # the pools say which GPUs, and how many ranks
        settings = {**self.settings_of(count, 0), "gpu": default, "tensor_parallel_size": 1}
        return FleetTrial(settings, 1, seed, **changes)


def smaller_by_one(fleet: PoolsCandidate) -> list[Candidate]:
    """Return the fleets with one engine less in either pool, each as a candidate of its own."""
    count = fleet.holding or 1
    num_prefill, num_decode = fleet.sizes[count - 1]
    found: list[Candidate] = []
    for size in ((num_prefill - 1, num_decode), (num_prefill, num_decode - 1)):
        if size[0] >= fleet.least[0] and size[1] >= fleet.least[1] and size not in fleet.sizes:
            fresh = replace(fleet, sizes=(size,), most=1, is_variant=True, tried={}, failing=0, holding=None)
            found.append(replace(fresh, is_found=False, is_verified=False))
    return found


def pools_of(
    machines: "Iterable[tuple[Candidate, Simulated]]",
    requests: "Sequence[TraceRequest]",
    objectives: "Sequence[Objective]",
    max_gpus: int,
) -> list[PoolsCandidate]:
    """Return the pairs of machines that may cost least; an empty list if all requests arrive at once."""
    span_s = requests[-1].arrival_s - requests[0].arrival_s
    if not span_s:
        return []
    groups: dict[str, list[tuple[Candidate, Need, Need]]] = {}
    for machine, simulated in machines:
        further = [(name, value) for name, value in machine.settings.items() if name not in MACHINE]
        terms = simulated, requests, objectives, span_s
        groups.setdefault(repr(further), []).append((machine, _prefill(*terms), _decode(*terms)))
    found: list[PoolsCandidate] = []
    for group in groups.values():
        pairs = (_pair(a, b, need, other, max_gpus) for (a, need, _), (b, _, other) in product(group, group))
        found += [each for *_, each in sorted(filter(None, pairs), key=lambda pair: pair[:2])[:PAIRS]]
    return found


def _pair(
    one: Candidate, two: Candidate, prompts: Need, answers: Need, max_gpus: int
) -> tuple[float, float, PoolsCandidate] | None:
    """Return a lower bound on the price of two kinds of machines, their work, and their fleets; None without
    a possible fleet.
    """
    if math.inf in (prompts.engines, answers.engines):
        return None
    gpus = one.num_gpus, two.num_gpus
    sizes = tuple(_sizes(prompts, answers, gpus, max_gpus - one.spare * sum(gpus)))
    if not sizes:
        return None
    lengths = [each.settings["max_model_len"] for each in (one, two) if "max_model_len" in each.settings]
    settings = {name: value for name, value in two.settings.items() if name not in MACHINE}
    settings |= {"max_model_len": max(lengths)} if lengths else {}
    fleets = PoolsCandidate(
        settings,
        0.0,
        num_gpus=0,
        most=len(sizes),
        spare=one.spare,
        parts=(one, two),
        sizes=sizes,
        least=sizes[0],
    )
    return fleets.price_of(1), prompts.engines * one.price + answers.engines * two.price, fleets


def _sizes(prompts: Need, answers: Need, gpus: tuple[int, int], max_gpus: int) -> Iterator[tuple[int, int]]:
    """Yield fleets from the smallest on; the pool with the smaller share of its need grows first."""
    prefill, decode = prompts.least, answers.least
    while prefill * gpus[0] + decode * gpus[1] <= max_gpus:
        yield prefill, decode
        if prefill * answers.engines <= decode * prompts.engines:
            prefill += 1
        else:
            decode += 1


def _limit_s(objectives: "Sequence[Objective]", latency: str) -> float:
    """Return the lowest limit on a latency, of all requests or of a tenant; infinite without one."""
    return min((each.below_s for each in objectives if each.metric.figure == latency), default=math.inf)


def _need(work_s: float, span_s: float, late_s: float, requests: "Sequence[TraceRequest]") -> Need:
    """Return the engines for this work within the traffic's span, and the number below which latency limits
    are missed.

    Too few engines fall behind steadily: halfway through the traffic the delay is half of the final one, and
    every percentile from the median on is beyond that. Prefix hits may save work: if prompts have named
    contents, the minimum is one engine.
    """
    is_named = any(row.hash_ids is not None for row in requests)
    least = 1 if is_named or work_s == math.inf else max(math.ceil(work_s / (span_s + late_s)), 1)
    return Need(work_s / span_s, least)


def _prefill(
    machine: "Simulated", requests: "Sequence[TraceRequest]", objectives: "Sequence[Objective]", span_s: float
) -> Need:
    """Return the engines for prompts, in full steps; infinite if a prompt without any other is too slow."""
    from sundog.sim.cost.work import StepWork

    cost, limit = machine.cost, machine.config.scheduler.max_num_batched_tokens

    def seconds(length: int, together: int = 1) -> float:
        starts = range(0, length, limit)
        chunks = [(min(limit, length - start), start) for start in starts]
        return sum(cost.step_s(StepWork(0, 0, (chunk,) * together, together)) for chunk in chunks) / together

    for each in objectives:
        metric = each.metric
        rows = [row for row in requests if metric.tenant in (None, row.tenant) and row.hash_ids is None]
        if metric.figure == "ttft_s" and rows:
            lengths = sorted(row.num_prompt_tokens for row in rows)
            rank = math.floor((metric.percent or 0.0) / 100 * (len(lengths) - 1))
            if seconds(lengths[rank]) > each.below_s:
                return Need(math.inf, 1)
    lengths = sorted(row.num_prompt_tokens for row in requests)
    sample = lengths[:: math.ceil(len(lengths) / SAMPLE)]
    work_s = sum(seconds(length, max(limit // length, 1)) for length in sample) / len(sample) * len(requests)
    return _need(work_s, span_s, 2 * _limit_s(objectives, "ttft_s"), requests)


def _decode(
    machine: "Simulated", requests: "Sequence[TraceRequest]", objectives: "Sequence[Objective]", span_s: float
) -> Need:
    from sundog.sim.cost.work import StepWork

    scheduler, capacity = machine.config.scheduler, machine.capacity
    tokens = sum(row.num_output_tokens for row in requests)
    context = sum(row.num_prompt_tokens + row.num_output_tokens / 2 for row in requests) / len(requests)
    most = min(scheduler.max_num_seqs, int(capacity.num_blocks * capacity.block_size / context))
    limit_s = _limit_s(objectives, "tpot_s")

    def step_s(batch: int) -> float:
        return machine.cost.step_s(StepWork(batch, int(batch * context), (), batch))

    batch = bisect_left(range(1, most + 1), limit_s, key=step_s)
    late_s = 2 * _limit_s(objectives, "ttft_s") + limit_s * max(row.num_output_tokens for row in requests)
    return _need(tokens / batch * step_s(batch) if batch else math.inf, span_s, late_s, requests)
