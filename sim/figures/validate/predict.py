"""A real server's load through the simulated graph, and what its clients would have measured."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from actors.config import EngineConfig
from actors.core.config import SchedulerConfig
from sim.cost.overhead import HostOverhead
from sim.cost.scaled import Scaled
from sim.figures.metrics import request_times
from sim.figures.saturation import KNEE, saturation
from sim.figures.statistics.distribution import distribution
from sim.figures.validate.measured import Figures, Server, Stage
from sim.hardware.gpu import load_gpu
from sim.hardware.model import load_model
from sim.record.recorder import Recorder
from sim.record.rows import Rows
from sim.replay import replay
from sim.target import Target

BLOCK_SIZE = 16
DOUBT = 0.03
"""How far off a step's time may be, for that range."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds by the names of `Stage.figures`, and the distance to saturation.

    `saturation` is the mean number of requests in the server over how many it can run at once;
    from 1 on the queue grows as long as the load lasts. `low` and `high` are the same figures with
    steps `DOUBT` faster and slower; None below the knee.
    """

    figures: Figures
    saturation: float
    low: Figures | None = None
    high: Figures | None = None

    @property
    def is_beyond_knee(self) -> bool:
        return self.saturation >= KNEE


def predict(server: Server, overhead: HostOverhead, cost_model: str) -> list[Prediction]:
    """A prediction per stage."""
    config, num_blocks = _deployment(server)
    recorder = _played(server, overhead, cost_model, 1.0)
    saturations = [_saturation(recorder, stage, config, num_blocks) for stage in server.stages]
    beyond = any(share >= KNEE for share in saturations)
    low, high = (
        tuple(_played(server, overhead, cost_model, 1 + doubt) for doubt in (-DOUBT, DOUBT))
        if beyond
        else (None, None)
    )
    predictions = []
    for stage, share in zip(server.stages, saturations, strict=True):
        spread = share >= KNEE
        predictions.append(
            Prediction(
                _figures(recorder, stage),
                share,
                _figures(low, stage) if low is not None and spread else None,
                _figures(high, stage) if high is not None and spread else None,
            )
        )
    return predictions


def _target(server: Server, cost_model: str = "auto") -> Target:
    return Target(
        load_model(server.model),
        load_gpu(server.gpu),
        tensor_parallel_size=server.tensor_parallel_size,
        gpu_memory_utilization=0.9,
        cost_model=cost_model,
    )


def _deployment(server: Server) -> tuple[EngineConfig, int]:
    target = _target(server)
    context = server.max_model_len or target.model.max_positions or 4096
    capacity = target.capacity(
        BLOCK_SIZE, server.max_num_batched_tokens, server.max_num_seqs, server.num_gpu_blocks
    )
    limits = SchedulerConfig(
        max_num_seqs=server.max_num_seqs,
        max_num_batched_tokens=server.max_num_batched_tokens,
        max_model_len=context,
        block_size=BLOCK_SIZE,
        async_scheduling=server.async_scheduling,
        num_gpu_blocks=server.num_gpu_blocks,
    )
    config = EngineConfig(scheduler=limits, decode_runs=True, refuse_never_fit=True)
    return config, capacity.num_blocks


def _played(server: Server, overhead: HostOverhead, cost_model: str, factor: float) -> Recorder:
    config, _ = _deployment(server)
    target = _target(server, cost_model)
    capacity = target.capacity(
        BLOCK_SIZE, server.max_num_batched_tokens, server.max_num_seqs, server.num_gpu_blocks
    )
    front_end_s = overhead.request_s if server.at_client else 0.0
    cost = Scaled(target.cost(overhead), factor)
    return replay(server.requests, config, cost, capacity, front_end_s=front_end_s)


def _rows(recorder: Recorder, stage: Stage) -> NDArray[np.bool_]:
    """Finished requests of the stage."""
    done = np.array([reason in ("stop", "length") for reason in recorder.columns.reason])
    number = np.array([int(name) for name in recorder.columns.request_id])
    rows: NDArray[np.bool_] = done & (number >= stage.first) & (number < stage.stop)
    return rows


def _figures(recorder: Recorder, stage: Stage) -> Figures:
    rows, times = _rows(recorder, stage), request_times(recorder)
    figures: Figures = {}
    for name, values in (("ttft", times.ttft_s), ("tpot", times.tpot_s), ("e2e", times.e2e_s)):
        chosen = values[rows]
        found = distribution(chosen[~np.isnan(chosen)])
        if found is not None:
            for kind in ("mean", "p50", "p90", "p99"):
                figures[f"{name} {kind}"] = getattr(found, kind)
    return figures


def _saturation(recorder: Recorder, stage: Stage, config: EngineConfig, num_blocks: int) -> float:
    part = Rows.of(recorder.columns), _rows(recorder, stage)
    seats = config.scheduler.max_num_running
    return saturation(lambda: iter([part]), seats, num_blocks, BLOCK_SIZE) or 0.0
