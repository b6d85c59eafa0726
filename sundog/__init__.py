"""Sundog: an inference engine and its simulator in one.

`sundog.replay`, `sundog.sweep`, `sundog.plan`, `sundog.serve` and `sundog.read` are what the commands do;
their results are tables and plots (docs/python.md). Commands are one file each, with one table of options.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actors.config import ConfigError
    from sundog.library.functions import plan, read, replay, serve, sweep
    from sundog.library.results import PlanResult, RunResult, SweepResult

WHERE = {
    **dict.fromkeys(("plan", "read", "replay", "serve", "sweep"), "sundog.library.functions"),
    **dict.fromkeys(("PlanResult", "RunResult", "SweepResult"), "sundog.library.results"),
    "ConfigError": "actors.config",
}
"""Public names and their modules, which are imported when they are asked for: commands start without them."""

__all__ = [
    "ConfigError",
    "PlanResult",
    "RunResult",
    "SweepResult",
    "plan",
    "read",
    "replay",
    "serve",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in WHERE:
        raise AttributeError(f"module sundog has no attribute {name}")
    return getattr(import_module(WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
