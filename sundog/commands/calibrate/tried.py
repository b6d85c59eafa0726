"""What was served, simulated: first to find what a request's way to the engine and back takes, then to try
the whole profile on a load to which nothing was fitted."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sim.cost.profile import Host
from sim.figures.metrics import Summary
from sim.show.beside import LATENCIES
from sundog.builds.measured import FIXED
from sundog.builds.measuring import Load, predict
from sundog.builds.simulated import Simulated
from sundog.commands.calibrate.served import Served
from sundog.options.engine import Engine
from sundog.options.row import rows
from sundog.options.simulation import Target, Terms


@dataclass(frozen=True, slots=True)
class Tried:
    """The whole of the host's share, and how far means of the trial are off: predicted / measured - 1."""

    host: Host
    front_s: tuple[tuple[str, float], ...]
    """What TTFT takes beyond the engine's steps, in each load."""
    errors: dict[str, float]
    num_requests: int


def try_served(profile: Path, engine: Engine, served: Served) -> Tried:
    """Simulate what was served; `profile` has the host's share of steps."""
    own: dict[str, Any] = {row.name: row.default for row in rows(Engine) if row.name in FIXED}
    simulated = Simulated.of(replace(engine, **own), Target(cost=str(profile)))
    front_s = list[tuple[str, float]]()
    usual_s = list[float]()
    for stage in served.fitted:
        predicted = predict(Load("", num_clients=stage.num_clients), simulated, Terms(), stage.rows)
        wait_s = max(0.0, _ttft_s(stage.measured) - _ttft_s(predicted))
        front_s.append((stage.name, wait_s))
        if stage.num_clients is None:  # those in a closed loop wait for each other at the door
            usual_s.append(wait_s)
    request_s = sum(usual_s) / len(usual_s)
    trial = served.trial
    predicted = predict(Load(""), replace(simulated, front_end_s=request_s), Terms(), trial.rows)
    errors = {
        name: getattr(predicted, field).mean / getattr(trial.measured, field).mean - 1
        for name, field in LATENCIES
        if getattr(trial.measured, field) is not None and getattr(predicted, field) is not None
    }
    host = replace(served.host, request_s=request_s)
    return Tried(host, tuple(front_s), errors, trial.measured.num_finished)


def _ttft_s(summary: Summary) -> float:
    return 0.0 if summary.ttft_s is None else summary.ttft_s.mean
