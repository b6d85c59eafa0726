"""Problem of a plan after its checks: the traffic, the machines and settings to try, their prices."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sundog.actors.config import ConfigError
from sundog.options.engine import EngineOptions
from sundog.options.simulation import LoadOptions, ReadingOptions, TargetOptions, TermsOptions, parse_rate
from sundog.planning.advice import KEEPS_PREFIXES, TUNED, Advice, advise
from sundog.planning.fleets import Fleets
from sundog.planning.pools import PoolsCandidate, pools_of
from sundog.planning.prices import price_of
from sundog.planning.search import Candidate
from sundog.sweeps.axes import WORKLOAD
from sundog.sweeps.cell import Plan, changed
from sundog.sweeps.source import check_tenants, workload_of

if TYPE_CHECKING:
    from sundog.sim.deployment.record import Simulated
    from sundog.sim.figures.named import Objective
    from sundog.sim.figures.sweep.cells import Settings

RANKS = (1, 2, 4, 8)
"""Tensor-parallel sizes to try by default."""
LENGTHS = 1024
"""A context chosen for the traffic is rounded up to a multiple of this number of tokens."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Problem of a plan: the traffic and the shared options, the settings to try, and their prices."""

    plan: "Plan"
    cells: "list[Settings]"
    objectives: "tuple[Objective, ...]"
    price: Callable[[str], float]
    max_gpus: int
    survive: int
    has_pools: bool = True

    def advise(
        self,
        made: Fleets,
        replications: int,
        confidence: float,
        tune: bool = True,
        window_s: float = math.inf,
    ) -> Advice:
        """Search for the cheapest fleet; a trace is one sample, whatever `replications` is.

        With `tune` other settings of the winner are tried, except those that the problem sets itself.
        """
        num_seeds = 1 if all(map(self.plan.is_fixed, self.cells)) else replications
        tuned = self._tuned() if tune else {}
        checked = list(self._candidates(num_seeds))

        def fresh() -> list[Candidate]:
            return [replace(each, tried={}) for each, _ in checked]

        def pools() -> list[PoolsCandidate]:
            return self._pools([(each, simulated) for each, simulated in checked if simulated is not None])

        terms = self.objectives, num_seeds, confidence
        return advise(made, *terms, fresh, pools, tuned, window_s)

    def _tuned(self) -> dict[str, tuple[int | str, ...]]:
        """Values to try on the winner, by option; options set by the user are not varied."""
        named = {name for cell in self.cells for name in cell}
        engine = self.plan.engine
        tuned = {
            name: values
            for name, values in TUNED.items()
            if name not in named and getattr(engine, name) is None
        }
        if engine.data_parallel_size > 1 or "data_parallel_size" in named:
            tuned.pop("router", None)  # ranks have a router of their own
        if "router" in tuned and self.plan.source({}).hash_block_tokens:
            tuned["router"] += KEEPS_PREFIXES
        return tuned

    def _pools(self, machines: "list[tuple[Candidate, Simulated]]") -> list[PoolsCandidate]:
        engine, target = self.plan.engine, self.plan.target
        if not self.has_pools or target.faults not in (None, "none") or target.scaler is not None:
            return []
        from sundog.builds.simulated import deploy
        from sundog.sim.workload.resample import retimed

        source, load = self.plan.source({}), self.plan.load
        requests = source.requests(engine.seed)
        if load.request_rate is not None:
            requests = list(retimed(requests, parse_rate(load.request_rate), engine.seed))
        found = []
        for each in pools_of(machines, requests, self.objectives, self.max_gpus):
            settings = each.trial(1).settings
            with suppress(ConfigError):
                deploy(changed(engine, settings), changed(target, settings))
                found.append(each)
        return found

    def _candidates(self, num_seeds: int) -> Iterator[tuple[Candidate, "Simulated | None"]]:
        """Yield each machine and its settings, refused at once if it cannot run.

        A machine without memory for the model's whole context gets the longest one that the traffic needs,
        unless a context was given.
        """
        from sundog.builds.simulated import deploy

        longest: int | None = None
        for settings in self.cells:
            engine, target = changed(self.plan.engine, settings), changed(self.plan.target, settings)
            num_gpus = _num_gpus(engine)
            if num_gpus * (self.survive + 1) > self.max_gpus:
                continue
            found = Candidate(
                settings,
                num_gpus * self.price(target.gpu),
                num_gpus=num_gpus,
                most=self.max_gpus // num_gpus - self.survive,
                spare=self.survive,
            )
            simulated = None
            try:
                simulated = deploy(engine, target)
            except ConfigError as error:
                found.refused = " ".join(str(error).split())
                if engine.max_model_len is None:
                    longest = longest or self._longest_tokens(num_seeds)
                    with suppress(ConfigError):
                        simulated = deploy(replace(engine, max_model_len=longest), target)
                        found = replace(found, settings={**settings, "max_model_len": longest}, refused=None)
            yield found, simulated

    def _longest_tokens(self, num_seeds: int) -> int:
        source, first = self.plan.source({}), self.plan.engine.seed
        most = max(
            row.num_prompt_tokens + row.num_output_tokens
            for seed in range(first, first + num_seeds)
            for row in source.requests(seed)
        )
        return LENGTHS * math.ceil(most / LENGTHS)


def _num_gpus(engine: EngineOptions) -> int:
    return engine.tensor_parallel_size * engine.pipeline_parallel_size * engine.data_parallel_size


def planned(
    source: str,
    reading: ReadingOptions,
    engine: EngineOptions,
    target: TargetOptions,
    load: LoadOptions,
    terms: TermsOptions,
    gpus: Sequence[str],
    vary: Mapping[str, Sequence[Any]],
    prices: Mapping[str, float] | None,
    max_gpus: int,
    has_ranks: bool,
    survive: int = 0,
    has_pools: bool = True,
    judge_s: float = 0.0,
) -> Problem:
    """Check a problem; raises ConfigError, which names the option.

    With `has_ranks` only the tensor-parallel size of `engine` is tried. The fleet must meet the objectives
    with `survive` of its replicas down. With `judge_s`, at least so many seconds of steady traffic count.
    """
    from sundog.sim.figures.sweep.cells import grid
    from sundog.sim.hardware.gpu import load_gpu

    objectives = terms.service_level.objectives
    if not objectives:
        raise ConfigError("--slo names no objective of a run: give a percentile, as in --slo 'p95(ttft)<1'")
    if target.pool or "pool" in vary:
        raise ConfigError("--pool cannot be given, since a plan searches pools: leave it out")
    if engine.replicas != 1 or "replicas" in vary:
        raise ConfigError("--replicas cannot be given, since a plan searches replicas: leave it out")
    for name in vary:
        if name.startswith(WORKLOAD):
            raise ConfigError(f"--vary has {name}: a plan has one workload; use sweep to compare several")
    axes: dict[str, Any] = {"gpu": list(dict.fromkeys(gpus)), "tensor_parallel_size": list(RANKS)}
    if has_ranks:
        axes["tensor_parallel_size"] = [engine.tensor_parallel_size]
    axes |= {name: list(values) for name, values in vary.items()}
    cells = grid(axes)
    for gpu in axes["gpu"]:
        if not gpu.strip():
            raise ConfigError("--gpu names an empty GPU: give names with commas between, as in h100,b200")
        if ".toml" not in gpu:
            load_gpu(gpu)
        price_of(gpu, prices)
    if all(_num_gpus(changed(engine, settings)) * (survive + 1) > max_gpus for settings in cells):
        several = "one replica" if not survive else f"{survive + 1} replicas"
        raise ConfigError(f"--max-gpus is {max_gpus}: every setting takes more GPUs for {several}")
    one = replace(target, gpu=axes["gpu"][0])
    shared = Plan(
        workload_of(source, reading),
        source,
        engine=engine,
        target=one,
        load=load,
        terms=terms,
        judged_s=judge_s or None,
    )
    check_tenants(shared, cells, [each.metric for each in objectives])
    return Problem(
        shared,
        cells,
        objectives=objectives,
        price=lambda gpu: price_of(gpu, prices),
        max_gpus=max_gpus,
        survive=survive,
        has_pools=has_pools,
    )
