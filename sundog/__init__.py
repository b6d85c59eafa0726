"""Sundog: an inference engine and its simulator in one.

`sundog.replay`, `sweep`, `plan`, `capacity`, `compare`, `explain`, `walk`, `figure`, `trace`, `workload`,
`calibrate` and `serve` are what the commands do, and `sundog.read` opens what they wrote; their results
(RunResult, SweepResult, PlanResult, ComparisonResult, CapacityResult, WalkResult, CalibrationResult) are
tables, plots and pages (docs/python.md). Commands are one file each, with one table of options.


Files with a policy, router, predictor or scaler of your own import from here, too:

    Policy       base of a scheduling policy       Request   a request, as the scheduler stores it
    View         the scheduler's state, read-only  Rank      a rank with the time until which it is valid
    Refusal      the refusal of a request          Fcfs      first come, first served
    Router       base of a router policy           Fleet     the replicas, read-only
    Submit       a request as it arrives           Unfinished   a request that may move to another replica
    Predictor    base of a predictor of lengths    Unanswered   a request, as a predictor sees it
    Scaler       base of a scaler                  ScaledFleet  the load, as a scaler sees it
    VirtualTokenCounter   fair sharing between tenants
    ConfigError  an option or a file is wrong; base of the next three
    PolicyError  a policy, router, predictor or scaler failed
    TraceError   a trace cannot be read            RunError  the folder of a run cannot be read

The folders `actors/`, `runtime/` and `sim/` are installed in here, as links in a source tree, so that a
`sim.py` beside a notebook stays its owner's. What lies in them may change.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sundog.actors.config import ConfigError
    from sundog.actors.core.policies import Fcfs, Policy, Rank, Refusal, Request, View
    from sundog.actors.core.policies.guard import PolicyError
    from sundog.actors.core.policies.orders import VirtualTokenCounter
    from sundog.actors.core.predictors import LengthPredictor as Predictor
    from sundog.actors.core.predictors import Unanswered
    from sundog.actors.core.routers import Fleet, Submit, Unfinished
    from sundog.actors.core.routers import RouterPolicy as Router
    from sundog.actors.core.scalers import ScaledFleet, Scaler
    from sundog.library.answers import CalibrationResult, CapacityResult, ComparisonResult, WalkResult
    from sundog.library.functions import plan, read, replay, serve, sweep
    from sundog.library.questions import calibrate, capacity, compare, explain, figure, trace, walk, workload
    from sundog.library.results import PlanResult, RunResult, SweepResult
    from sundog.sim.files.run_files import RunError
    from sundog.sim.trace.record import TraceError

_POLICIES, _ROUTERS = "sundog.actors.core.policies", "sundog.actors.core.routers"
_PREDICTORS, _SCALERS = "sundog.actors.core.predictors", "sundog.actors.core.scalers"
WHERE = {
    **dict.fromkeys(("plan", "read", "replay", "serve", "sweep"), "sundog.library.functions"),
    **dict.fromkeys(
        ("calibrate", "capacity", "compare", "explain", "figure", "trace", "walk", "workload"),
        "sundog.library.questions",
    ),
    **dict.fromkeys(
        ("CalibrationResult", "CapacityResult", "ComparisonResult", "WalkResult"), "sundog.library.answers"
    ),
    **dict.fromkeys(("PlanResult", "RunResult", "SweepResult"), "sundog.library.results"),
    "ConfigError": "sundog.actors.config",
    "PolicyError": f"{_POLICIES}.guard",
    "TraceError": "sundog.sim.trace.record",
    "RunError": "sundog.sim.files.run_files",
    **dict.fromkeys(("Fcfs", "Policy", "Rank", "Refusal", "Request", "View"), _POLICIES),
    "VirtualTokenCounter": f"{_POLICIES}.orders",
    **dict.fromkeys(("Fleet", "Router", "Submit", "Unfinished"), _ROUTERS),
    **dict.fromkeys(("Predictor", "Unanswered"), _PREDICTORS),
    **dict.fromkeys(("ScaledFleet", "Scaler"), _SCALERS),
}
"""Public names and their modules, imported on first use, so that commands start without them."""
INSIDE = {"Router": "RouterPolicy", "Predictor": "LengthPredictor"}
"""Public names of classes that have another name in the source."""

__all__ = [
    "CalibrationResult",
    "CapacityResult",
    "ComparisonResult",
    "ConfigError",
    "Fcfs",
    "Fleet",
    "PlanResult",
    "Policy",
    "PolicyError",
    "Predictor",
    "Rank",
    "Refusal",
    "Request",
    "Router",
    "RunError",
    "RunResult",
    "ScaledFleet",
    "Scaler",
    "Submit",
    "SweepResult",
    "TraceError",
    "Unanswered",
    "Unfinished",
    "View",
    "VirtualTokenCounter",
    "WalkResult",
    "calibrate",
    "capacity",
    "compare",
    "explain",
    "figure",
    "plan",
    "read",
    "replay",
    "serve",
    "sweep",
    "trace",
    "walk",
    "workload",
]


def __getattr__(name: str) -> Any:
    if name not in WHERE:
        raise AttributeError(f"module sundog has no attribute {name}")
    return getattr(import_module(WHERE[name]), INSIDE.get(name, name))


def __dir__() -> list[str]:
    return sorted(__all__)
