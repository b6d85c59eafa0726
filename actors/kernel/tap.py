"""The tap: a hook that sees every message of a graph. A tap that fails is dropped, with a warning."""

import logging
from collections.abc import Callable

from sundog.actors.core.config import ConfigError

Tap = Callable[[float, str, str, object], None]
"""Hook for every message: time on the run's clock, sender, receiver, message."""

log = logging.getLogger("sundog.actors")


class GuardedTap:
    """Tap that forwards messages until the inner tap fails, and warns once."""

    __slots__ = ("_tap",)

    def __init__(self, tap: Tap) -> None:
        self._tap: Tap | None = tap

    def __call__(self, time_s: float, sender: str, receiver: str, message: object) -> None:
        if self._tap is None:
            return
        try:
            self._tap(time_s, sender, receiver, message)
        except ConfigError as error:
            log.warning("the tap failed and is switched off: %s", error)
            self._tap = None
        except Exception:
            log.warning("the tap %r failed and is switched off", self._tap, exc_info=True)
            self._tap = None


def guarded(tap: Tap | None) -> Tap | None:
    """Return a tap that never raises, shared by all actors of a graph."""
    return tap if tap is None or isinstance(tap, GuardedTap) else GuardedTap(tap)
