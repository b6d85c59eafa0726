"""Watchdogs of the server's own process: threads that detect stalls.

`WatchedBackend` watches an engine's actors and only logs: nothing can end a step from within a process. Law:
it logs a stall once it has lasted `stall_s`, again each time that has doubled, and when the engine goes on.

`LoopWatchdog` watches the event loop. A user's policy that never returns blocks it, and with it every stream,
`/health` and SIGTERM. Law: a loop that does not respond for `stall_s`, or for LOOP_LEAVE_S after a stop
signal, ends its process with one line that says where it is. Time in which the process itself was stopped
does not count.
"""

import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Sequence
from types import FrameType
from typing import Final, Never

import trio

from sundog.actors.engine.backend import Backend, LoadsAdapters
from sundog.actors.engine.reports import ActorReport, report
from sundog.actors.kernel.actor import Actor, Reply
from sundog.actors.kernel.clock import now_s
from sundog.actors.messages import Batch, Capacity, ChangeAdapters, Done, Load, Refused, StepResult
from sundog.actors.policy_file import MODULE
from sundog.runtime.worker.life import PULSE_S

log = logging.getLogger("sundog.engine")

LOOK_S = PULSE_S / 2
NUM_FRAMES = 3
LOOP_LOOK_S: Final = 0.25
LOOP_LEAVE_S: Final = 2.0
"""Seconds after a stop signal within which the event loop must respond; otherwise it has stalled."""
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class WatchedBackend:
    """Backend in this process (`Backend`), with a watchdog of its core (`WatchesActors`).

    An actor that handles one message for more than `stall_s` is stalled, `load_s` while it loads.
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

    async def change_adapters(self, change: ChangeAdapters) -> Done | Refused:
        backend = self._backend
        return await backend.change_adapters(change) if isinstance(backend, LoadsAdapters) else Done()

    async def close(self) -> None:
        self._is_over.set()
        await self._backend.close()

    def watch(self, actors: Sequence[Actor[Never]]) -> None:
        """Watch these actors as well, until the backend is closed."""
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
    frames = sys._current_frames()
    where = []
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if frame is not None and thread is not threading.current_thread():
            inner = reversed(traceback.extract_stack(frame)[-NUM_FRAMES:])
            calls = [f"{each.filename}:{each.lineno} in {each.name}" for each in inner]
            where.append(f"thread {thread.name}: {', called at '.join(calls)}")
    return where


class LoopWatchdog:
    """Watchdog of the event loop in which `start` is called; on a stall its thread calls `end` with a line
    that says where.
    """

    def __init__(self, stall_s: float, end: Callable[[str], None]) -> None:
        self._stall_s = stall_s
        self._end = end
        self._num_silent = 0
        self._is_told = False

    def start(self) -> None:
        """Begin to watch the event loop, until it is over."""
        token, loop_thread = trio.lowlevel.current_trio_token(), threading.get_ident()
        for number in SIGNALS:
            self._listen(number)
        arguments = (token, loop_thread)
        threading.Thread(target=self._look, args=arguments, name="loop watchdog", daemon=True).start()

    def _listen(self, number: signal.Signals) -> None:
        handler = signal.getsignal(number)

        def note(number: int, frame: FrameType | None) -> None:
            self._is_told = True
            if callable(handler):
                handler(number, frame)

        if callable(handler):
            signal.signal(number, note)

    def _look(self, token: trio.lowlevel.TrioToken, loop_thread: int) -> None:
        is_over = threading.Event()
        while not is_over.wait(LOOP_LOOK_S):
            self._num_silent += 1
            silent_s = self._num_silent * LOOP_LOOK_S
            if silent_s > (min(LOOP_LEAVE_S, self._stall_s) if self._is_told else self._stall_s):
                return self._end(f"the server does not go on for {silent_s:g} s: {_policy_at(loop_thread)}")
            try:
                token.run_sync_soon(self._go_on, idempotent=True)
            except trio.RunFinishedError:
                return

    def _go_on(self) -> None:
        self._num_silent = 0


def end_process(line: str) -> None:
    """Print a line, and end this process by force: nothing can end a call from within."""
    sys.stderr.write(f"sundog: {line}\n")
    sys.stderr.flush()
    os._exit(1)


def _policy_at(thread: int) -> str:
    """Return the user's method that a thread is running; otherwise the line that it is at."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "its thread is gone"
    place = f"{frame.f_code.co_filename}, line {frame.f_lineno}, is in {frame.f_code.co_name}"
    line, method = 0, ""
    while frame is not None:
        kind = str(frame.f_globals.get("__name__")).split(".")
        if kind[0] == MODULE:
            line, method = line or frame.f_lineno, frame.f_code.co_name
            place = f"{kind[1]} {frame.f_code.co_filename}: {method} does not answer (line {line})"
        frame = frame.f_back
    return place
