"""Events of the live page: snapshots of the server, each made once for all readers."""

import json
import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

import trio

from sundog.actors.engine.reports import Roster
from sundog.actors.kernel.clock import now_s, run_blocking
from sundog.actors.metrics.forecast import Accuracy, FirstToken, Forecast, Known, SeenLengths, look_ahead
from sundog.actors.metrics.metrics import Metrics
from sundog.actors.metrics.snapshot import actors_shown, snapshot, waiting_in_order

log = logging.getLogger("sundog.api")

EVERY_S = 0.5
FORECAST_EVERY_S = 1.0


class LiveEvents(Protocol):
    """Source of the live page's events, which ends pages at shutdown."""

    draining: trio.Event

    async def event(self) -> bytes:
        """Return the newest snapshot as a server-sent event."""
        ...


@dataclass(slots=True)
class Live:
    """State of the page, refreshed at most every half second, forecasts once a second in `nursery`.

    `facts` are constant. `draining` is set at shutdown: then pages are closed.
    """

    metrics: Metrics
    facts: dict[str, object]
    nursery: trio.Nursery
    roster: Roster
    forecast: Forecast | None = None
    draining: trio.Event = field(default_factory=trio.Event)
    accuracy: Accuracy = field(default_factory=Accuracy)
    posted: Counter[str] = field(default_factory=Counter)
    """Finished HTTP requests by status class: `2xx`, `4xx`, `5xx`."""
    _event: bytes = b""
    _made_s: float = float("-inf")
    _forecasts: dict[str, FirstToken] = field(default_factory=dict)
    """Forecast times of first tokens by request, on the run's clock."""
    _forecast_s: float = float("-inf")
    _is_forecasting: bool = False

    async def event(self) -> bytes:
        """Return the newest snapshot as a server-sent event; compute a forecast that is due meanwhile."""
        if now_s() - self._made_s >= 0.9 * EVERY_S:
            self._made_s = now_s()
            if self.forecast is not None and now_s() - self._forecast_s >= FORECAST_EVERY_S:
                self.nursery.start_soon(self._look_ahead, self.forecast)
            self._event = self._made()
        return self._event

    def _made(self) -> bytes:
        time_s, metrics = now_s(), self.metrics
        self.accuracy.settle(metrics.requests)
        is_up = any(engine.is_up for engine in metrics.engines)
        shown_of = self.accuracy.stretched
        left = {name: shown_of(at).less(time_s) for name, at in self._forecasts.items() if is_up}
        shown = snapshot(metrics, time_s, left, self.accuracy)
        actors = actors_shown(self.roster.reports())
        shown |= {"facts": self.facts, "at": time.time(), "actors": actors, "posted": dict(self.posted)}
        return b"data: %s\n\n" % json.dumps(shown, separators=(",", ":"), default=str).encode()

    async def _look_ahead(self, forecast: Forecast) -> None:
        """Compute a forecast in a thread: hundreds of steps take a while."""
        if self._is_forecasting:
            return
        metrics, begin_s = self.metrics, now_s()
        waiting = waiting_in_order(metrics)
        self._forecast_s, self._is_forecasting = begin_s, True
        forecasts: dict[str, FirstToken] = {}
        seen = SeenLengths.of(metrics.recent, metrics.requests.values())
        running = [request for request in metrics.requests.values() if request.is_running]
        looks = {
            replica: [
                [Known.of(each) for each in requests if (each.replica or 0) == replica]
                for requests in (running, waiting)
            ]
            for replica in sorted({request.replica or 0 for request in waiting})
            if metrics.engines[replica].is_up  # others are answered when theirs is back: nobody knows when
        }
        try:
            for replica, (here, queued) in looks.items():
                found = await run_blocking(look_ahead, forecast, replica, seen, here, queued)
                forecasts |= {name: each.less(-begin_s) for name, each in found.items()}
        except Exception:  # a user's policy runs there, and a page is no reason to fail
            log.warning("the forecast failed and is switched off", exc_info=True)
            self.forecast, forecasts = None, {}
        finally:
            self._forecasts, self._is_forecasting = forecasts, False
        for request in waiting:
            if (at := self._forecasts.get(request.request_id)) is not None:
                self.accuracy.forecast(request, at.less(request.arrival_s))
