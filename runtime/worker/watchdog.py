"""The watchdog of an engine in the server's own process: a thread that says what it sees.

It cannot end a step: nothing can from within a process. Law: what does not go on is said once it has lasted
`stall_s`, again each time that has doubled, and so is that it goes on.
"""

import logging
import sys
import threading
import time
import traceback
from collections.abc import Coroutine, Sequence
from typing import Never

from actors.engine.backend import Backend
from actors.engine.reports import ActorReport, report
from actors.kernel.actor import Actor, Reply
from actors.kernel.clock import now_s
from actors.messages import Batch, Capacity, Load, StepResult
from runtime.worker.life import PULSE_S

log = logging.getLogger("sundog.engine")

LOOK_S = PULSE_S / 2
NUM_FRAMES = 3


class Watched:
    """A backend in this process (`Backend`), with a watchdog of the core that it is in (`WatchesActors`).

    A message that takes an actor more than `stall_s` does not go on, `load_s` while it loads.
    """

    def __init__(self, backend: Backend, stall_s: float, load_s: float) -> None:
        self._backend = backend
        self._stall_s, self._load_s = stall_s, load_s
        self._actors: list[Actor[Never]] = []
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def load(self) -> Coroutine[object, object, Capacity]:
        return self._backend.load()

    def execute(self, batch: Batch) -> Coroutine[object, object, StepResult] | Reply[StepResult]:
        return self._backend.execute(batch)

    async def close(self) -> None:
        self._is_over.set()
        await self._backend.close()

    def watch(self, actors: Sequence[Actor[Never]]) -> None:
        """Watch these, too."""
        self._actors.extend(actors)
        if self._thread is None:
            offset_s = now_s() - time.perf_counter()
            self._thread = threading.Thread(target=self._look, args=(offset_s,), name="watchdog", daemon=True)
            self._thread.start()

    def _look(self, offset_s: float) -> None:
        said_s = 0.0
        while not self._is_over.wait(LOOK_S):
            reports = report(self._actors, offset_s + time.perf_counter())
            late = [each for each in reports if each.doing is not None and each.for_s > self._limit_s(each)]
            longest_s = max((each.for_s for each in late), default=0.0)
            if not late and said_s:
                log.warning("the engine goes on")
            elif late and longest_s > 2 * said_s:
                lines = [*map(str, reports), *_where()]
                log.warning("the engine does not go on: %s%s", late[-1], "".join(f"\n    {x}" for x in lines))
            else:
                continue
            said_s = longest_s

    def _limit_s(self, each: ActorReport) -> float:
        return self._load_s if each.doing == Load.__name__ else self._stall_s


def _where() -> list[str]:
    """What each other thread of the process executes, its innermost lines first."""
    frames = sys._current_frames()
    where = []
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if frame is not None and thread is not threading.current_thread():
            inner = reversed(traceback.extract_stack(frame)[-NUM_FRAMES:])
            calls = [f"{each.filename}:{each.lineno} in {each.name}" for each in inner]
            where.append(f"thread {thread.name}: {', called at '.join(calls)}")
    return where
