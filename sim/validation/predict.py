"""Simulation of a real server's deployment under its load, for comparison with its clients' measurements.

Figures of a finite run differ from those of another run of the same server; that difference is estimated
here, too.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sundog.actors.config import EngineConfig
from sundog.actors.config.front_costs import NO_FRONT, FrontCosts
from sundog.actors.core.config import ConfigError, SchedulerConfig
from sundog.actors.core.engine_version import decisions_of, weighs_kv
from sundog.actors.core.routers.rules import DataParallel, RoundRobin
from sundog.actors.messages import Capacity
from sundog.sim.cost.composed import in_step, scaled
from sundog.sim.cost.doubt import FRONT_END_DOUBT, step_doubt
from sundog.sim.cost.overhead import HostOverhead
from sundog.sim.cost.work import CostModel
from sundog.sim.deployment.hardware import NamedHardware
from sundog.sim.figures.distribution import distribution
from sundog.sim.figures.load import KNEE, Regime, regime_of, saturation
from sundog.sim.figures.metrics import request_times
from sundog.sim.record.recorder import Recorder
from sundog.sim.record.rows import Rows
from sundog.sim.replay import replay
from sundog.sim.target import Target
from sundog.sim.validation.bursts import held_back_s
from sundog.sim.validation.measured import THROUGHPUT, Figures, Floats, MeasuredServer, Stage


@dataclass(frozen=True, slots=True)
class Deployment:
    """Deployment of a real server; `capacity` is that of each data-parallel rank, a replica behind vLLM's own
    balancer.

    The number of API servers is not recorded: one is assumed, which counts all requests.
    """

    target: Target
    config: EngineConfig
    capacity: Capacity

    @classmethod
    def of(cls, server: MeasuredServer, cost_model: str = "auto") -> "Deployment":
        """Return the deployment of a server; raises ConfigError if it cannot be predicted."""
        target = _target(server, cost_model)
        options, asked = server.options, server.options.speculation
        seqs, budget = server.max_num_seqs, server.max_num_batched_tokens
        target = target.with_limits(server.engine_version, seqs, budget)
        limits = SchedulerConfig(
            max_num_seqs=seqs,
            max_num_batched_tokens=budget,
            max_model_len=server.max_model_len or target.model.max_positions or 4096,
            block_size=options.block_size,
            async_scheduling=server.async_scheduling and asked is None,
            num_gpu_blocks=server.num_gpu_blocks,
            enable_prefix_caching=options.enable_prefix_caching,
            enable_chunked_prefill=options.enable_chunked_prefill,
            pipeline_parallel_size=options.pipeline_parallel_size,
            num_speculative_tokens=0 if asked is None else asked.num_tokens,
            num_lookahead_tokens=0 if asked is None else asked.num_lookahead_tokens,
            engine_version=decisions_of(server.engine_version),
        )
        limits = target.with_states(limits)
        capacity = target.capacity(
            limits.block_size, budget, seqs, server.num_gpu_blocks, caches=limits.enable_prefix_caching
        )
        balancer = DataParallel("kv" if weighs_kv(server.engine_version) else "counts")
        config = EngineConfig(
            scheduler=limits,
            decode_runs=True,
            refuse_never_fit=True,
            replicas=options.data_parallel_size,
            router=balancer if options.data_parallel_size > 1 else RoundRobin(),
            speculation=asked,
        )
        return cls(target, config, capacity)

    @property
    def max_num_running(self) -> int:
        """Most requests that run at once, on all ranks."""
        return self.config.replicas * self.config.scheduler.max_num_running

    @property
    def num_blocks(self) -> int:
        """Number of blocks of all ranks."""
        return self.config.replicas * self.capacity.num_blocks

    def played_cost(self, cost: CostModel, factor: float = 1.0) -> CostModel:
        """Return `cost` with steps `factor` times as long, and ranks in step if they share experts."""
        return in_step(scaled(cost, factor), self.target.data_parallel_size)


def _target(server: MeasuredServer, cost_model: str) -> Target:
    options = server.options
    return NamedHardware(
        model=server.model,
        gpu=server.gpu,
        cost_model=cost_model,
        dtype=options.dtype,
        kv_cache_dtype=options.kv_cache_dtype,
        quantization=options.quantization,
        gpu_memory_utilization=server.gpu_memory_utilization,
        generation=options.override_generation_config,
        speculation=options.speculation,
        tensor_parallel_size=server.tensor_parallel_size,
        pipeline_parallel_size=options.pipeline_parallel_size,
        data_parallel_size=options.data_parallel_size,
        expert_parallel=options.enable_expert_parallel,
        enforce_eager=options.enforce_eager,
    ).target()


KINDS = ("mean", "p50", "p90", "p99")
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
NUM_BATCHES = 10
REPEATED = 0.013
"""Relative differences between two identical runs of one server: 0.7 % in E2E and TPOT, 1.3 % in TTFT."""
RARE = {"ttft p99": 0.35, "e2e p99": 0.2}
"""Share by which a percentile of rare events may be higher: a server's first steps load code and allocate
memory, its front end collects garbage; none of that is simulated (Llama-2 servers whose first hundred
prompts miss the prefix cache have a p99 TTFT up to 35 % above).
"""


def figures_within(values: Mapping[str, Floats], deviations: float) -> Figures:
    """Return mean and percentiles of values in order of arrival, moved by this many standard deviations.

    The deviation is that of the figure's estimate from the figures of ten batches in a row, because requests
    that wait together are alike (batch means), and for percentiles at least that of their rank, sqrt(n q (1 -
    q)), whatever the distribution.
    """
    figures: Figures = {}
    for name, own in values.items():
        if name == THROUGHPUT:
            figures |= {name: float(own[0])} if len(own) else {}
        elif len(own):
            figures |= {f"{name} {kind}": _within(name, kind, own, deviations) for kind in KINDS}
    return figures


def _within(name: str, kind: str, own: Floats, deviations: float) -> float:
    exact = _figure(kind, own)
    if not deviations:
        return exact
    moved = exact
    if kind in QUANTILES:
        q = QUANTILES[kind]
        moved = float(
            np.quantile(own, min(max(q + deviations * math.sqrt(q * (1 - q) / len(own)), 0.0), 1.0))
        )
    if len(own) >= NUM_BATCHES:
        batches = [_figure(kind, part) for part in np.array_split(own, NUM_BATCHES)]
        by_batch = exact + deviations * float(np.std(batches, ddof=1)) / math.sqrt(NUM_BATCHES)
        moved = max(moved, by_batch) if deviations > 0 else min(moved, by_batch)
    away = 1 + math.copysign(REPEATED, deviations)
    if deviations > 0:
        away += RARE.get(f"{name} {kind}", 0.0)
    return max(moved, 0.0) * away


def _figure(kind: str, own: Floats) -> float:
    found = distribution(own)
    assert found is not None
    figure: float = getattr(found, kind)
    return figure


def span(runs: Sequence[Figures]) -> tuple[Figures, Figures]:
    """Return the smallest and the largest value of each figure over the runs."""
    names = [name for name in runs[0] if all(name in run for run in runs)]
    low = {name: min(run[name] for run in runs if name in run) for name in names}
    return low, {name: max(run[name] for run in runs if name in run) for name in names}


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds by the names of `Stage.figures`, and the load over capacity.

    `saturation` is the load over capacity (`sundog.sim.figures.load`); from 1 on the queue grows as long as
    the load lasts; `highest_saturation` is that with steps longer by `doubt`. `low` and `high` bound the same
    figures, with steps shorter and longer by `doubt` and by the chance variation of that many requests.
    """

    figures: Figures
    saturation: float
    highest_saturation: float
    low: Figures
    high: Figures
    doubt: float
    amplification: float
    """Percent by which E2E grows if steps are one percent longer."""

    @property
    def load(self) -> float:
        """Load as a share of the one at the knee, by time or by running slots, whichever is scarcer.

        In a queue with shared service E2E is 1 / (1 - load) of its value alone, so that its elasticity gives
        the load.
        """
        return max(self.saturation, 1 - 1 / max(self.amplification, 1.0))

    @property
    def is_beyond_knee(self) -> bool:
        """Whether the server may be at the knee or beyond."""
        return self.highest_saturation >= KNEE

    @property
    def regime(self) -> Regime:
        if self.saturation < KNEE <= self.highest_saturation:
            return "near the knee"
        return regime_of(self.saturation)

    def holds(self, name: str, real: float) -> bool:
        """Return whether the measurement lies within the range."""
        return self.low[name] <= real <= self.high[name]


def predict(server: MeasuredServer, overhead: HostOverhead, cost_model: str) -> list[Prediction]:
    """Return a prediction per stage; raises ConfigError if something of the server is not modelled."""
    if server.refused is not None:
        raise ConfigError(server.refused)
    deployment = Deployment.of(server, cost_model)
    front = deployment.target.front(overhead) if server.at_client else NO_FRONT
    cost = deployment.target.cost(overhead)
    recorder = _played(server, deployment, deployment.played_cost(cost), front)
    doubt = step_doubt(cost)
    quick, slow = (front.times(1 + side * FRONT_END_DOUBT) for side in (-1, 1))
    low = _played(server, deployment, deployment.played_cost(cost, (1 + doubt) ** -1), quick)
    high = _played(server, deployment, deployment.played_cost(cost, 1 + doubt), slow)
    fronts = NO_FRONT, NO_FRONT, slow
    predictions = []
    for stage in server.stages:
        runs = [_measured(run, stage, held) for run, held in zip((recorder, low, high), fronts, strict=True)]
        middle, *sides = (
            figures_within(run, deviations) for run, deviations in zip(runs, (0, -2, 2), strict=True)
        )
        lowest, largest = span([middle, *sides])
        share, highest = (_saturation(run, stage, deployment) for run in (recorder, high))
        amplification = _amplification(runs[1]["e2e"], runs[2]["e2e"], doubt)
        predictions.append(
            Prediction(
                middle,
                saturation=share,
                highest_saturation=highest,
                low=lowest,
                high=largest,
                doubt=doubt,
                amplification=amplification,
            )
        )
    return predictions


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges of figures in seconds, and the effect of 1 % of a step on E2E."""

    low: Figures
    high: Figures
    amplification: float


def ranges_of(low: Mapping[str, Floats], high: Mapping[str, Floats], doubt: float) -> Ranges:
    """Return the ranges from two runs, with steps shorter and longer by `doubt`, and the chance variation
    of either.
    """
    bounds = span([figures_within(low, -2), figures_within(high, 2)])
    return Ranges(*bounds, _amplification(low["e2e"], high["e2e"], doubt))


def _amplification(low: Floats, high: Floats, doubt: float) -> float:
    """Return the elasticity of mean E2E with respect to step times."""
    if not (len(low) and len(high) and doubt):
        return 1.0
    return float(math.log(high.mean() / low.mean()) / (2 * math.log1p(doubt)))


def _played(server: MeasuredServer, deployment: Deployment, cost: CostModel, front: FrontCosts) -> Recorder:
    return replay(
        server.requests,
        replace(deployment.config, front=front),
        cost,
        deployment.capacity,
        max_concurrency=server.max_concurrency,
        client_timeout_s=server.client_timeout_s,
    )


def _rows(recorder: Recorder, stage: Stage) -> NDArray[np.bool_]:
    done = np.array([reason in ("stop", "length") for reason in recorder.columns.reason])
    rows: NDArray[np.bool_] = done & _of_stage(recorder, stage)
    return rows


def _of_stage(recorder: Recorder, stage: Stage) -> NDArray[np.bool_]:
    number = np.array([int(name) for name in recorder.columns.request_id])
    rows: NDArray[np.bool_] = (number >= stage.first) & (number < stage.stop)
    return rows


def values_of(recorder: Recorder, rows: NDArray[np.bool_], held: FrontCosts) -> dict[str, Floats]:
    """Return TTFT, TPOT and E2E of these requests, which API processes of `held` costs hold back."""
    times = request_times(recorder)
    held_s = held_back_s(Rows.of(recorder.columns).arrival_s, held)
    values = {"ttft": times.ttft_s + held_s, "tpot": times.tpot_s, "e2e": times.e2e_s + held_s}
    return {name: own[rows & ~np.isnan(own)] for name, own in values.items()}


def _measured(recorder: Recorder, stage: Stage, held: FrontCosts) -> dict[str, Floats]:
    rows = _rows(recorder, stage)
    found = values_of(recorder, rows, held)
    each = Rows.of(recorder.columns)
    span_s = float(each.finish_s[rows].max() - each.arrival_s[rows].min()) if rows.any() else 0.0
    if span_s:
        span_s += float(held_back_s(each.arrival_s, held)[rows].max())
    found[THROUGHPUT] = np.array([rows.sum() / span_s] if span_s else [])
    return found


def _saturation(recorder: Recorder, stage: Stage, deployment: Deployment) -> float:
    part = Rows.of(recorder.columns), _of_stage(recorder, stage)
    running, blocks = deployment.max_num_running, deployment.num_blocks
    block_size = deployment.config.scheduler.block_size
    return saturation(lambda: iter([part]), running, blocks, block_size) or 0.0
