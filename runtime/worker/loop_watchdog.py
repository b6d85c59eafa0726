"""The watchdog of a server whose engines run in its own event loop: a thread that ends what does not go on.

A user's policy that never answers stops the loop, and with it every stream, `/health` and the obedience to
SIGTERM. Law: a loop that takes no notice for `stall_s`, or for `LEAVE_S` once it was told to stop, ends its
process with one line that says where it is. Time in which the process itself was stopped does not count.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final

import trio

from actors.policy_file import MODULE

LOOK_S: Final = 0.25
LEAVE_S: Final = 2.0
"""A loop that takes no notice of a signal to stop for this long has stalled."""
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class LoopWatchdog:
    """Watches the loop that `start` is called in; `end` is called with the line, in the thread."""

    def __init__(self, stall_s: float, end: Callable[[str], None]) -> None:
        self._stall_s = stall_s
        self._end = end
        self._num_silent = 0
        self._is_told = False

    def start(self) -> None:
        """Watch from now on, until the loop is over."""
        token, loop_thread = trio.lowlevel.current_trio_token(), threading.get_ident()
        for number in SIGNALS:
            self._listen(number)
        arguments = (token, loop_thread)
        threading.Thread(target=self._look, args=arguments, name="loop watchdog", daemon=True).start()

    def _listen(self, number: signal.Signals) -> None:
        """Note a signal to stop, which Trio only hears when it goes on."""
        handler = signal.getsignal(number)

        def note(number: int, frame: FrameType | None) -> None:
            self._is_told = True
            if callable(handler):
                handler(number, frame)

        if callable(handler):
            signal.signal(number, note)

    def _look(self, token: trio.lowlevel.TrioToken, loop_thread: int) -> None:
        is_over = threading.Event()
        while not is_over.wait(LOOK_S):
            self._num_silent += 1
            silent_s = self._num_silent * LOOK_S
            if silent_s > (min(LEAVE_S, self._stall_s) if self._is_told else self._stall_s):
                return self._end(f"the server does not go on for {silent_s:g} s: {_where(loop_thread)}")
            try:
                token.run_sync_soon(self._go_on, idempotent=True)
            except trio.RunFinishedError:
                return

    def _go_on(self) -> None:
        self._num_silent = 0


def end_process(line: str) -> None:
    """Say why, and end this process by force: nothing can end a call from within."""
    sys.stderr.write(f"sundog: {line}\n")
    sys.stderr.flush()
    os._exit(1)


def _where(thread: int) -> str:
    """The method of a user's policy or router that a thread is in; if it is in none, the line."""
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
