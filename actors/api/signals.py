"""SIGINT and SIGTERM: the first drains the server, the second cuts it, later ones change nothing."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import trio

log = logging.getLogger("sundog.api")

SIGNALS = (signal.SIGINT, signal.SIGTERM)
LEAVE_S = 5.0
EXIT_CODE = 130


class Stopping:
    """The progress of a server's shutdown.

    `drain` is set by the first signal, or by the program that runs the server; `cut` is
    cancelled by the next one. Until `ready` is set nothing runs that could be drained.
    """

    def __init__(self, drain: trio.Event) -> None:
        self.drain = drain
        self.cut = trio.CancelScope()
        self.ready = trio.Event()
        self._by_force = threading.Timer(LEAVE_S, os._exit, (EXIT_CODE,))
        self._by_force.daemon = True

    def hear(self) -> None:
        """Take note of a signal."""
        if self.ready.is_set() and not self.drain.is_set():
            log.info("stopping: running answers may finish; a second signal cuts them")
            self.drain.set()
        elif not self.cut.cancel_called:
            self.cut.cancel()
            self._by_force.start()

    @contextmanager
    def until_cut(self) -> Iterator[None]:
        """A block that a cut cancels; raises KeyboardInterrupt if one did.

        If leaving takes longer than LEAVE_S, because a thread holds it up, the process is ended by force.
        """
        try:
            with self.cut:
                yield
        finally:
            self._by_force.cancel()
        if self.cut.cancelled_caught:
            raise KeyboardInterrupt


async def obey_signals(
    stopping: Stopping, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Pass every signal on until cancelled; after a cut further signals are ignored."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        with trio.open_signal_receiver(*SIGNALS) as signals:
            task_status.started()
            async for _ in signals:
                stopping.hear()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_IGN if stopping.cut.cancel_called else handler)
