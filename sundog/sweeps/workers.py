"""Processes that run jobs one after another, here or elsewhere; a crash affects one job.

A pool of the standard library breaks as a whole when one of its processes is killed, and does not report the
job. Here each process has one job at a time: if it dies, that job has failed, and another process takes its
place. Only the parent process handles Ctrl-C, and ends the others; they also exit at once if the parent is
killed.
"""

import gc
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from sundog.actors.core.config import ConfigError

UNGUARDED = 78
"""Exit code of a worker whose script starts workers again while it is imported, because it lacks `if __name__
== "__main__"`.
"""
J = TypeVar("J")
R = TypeVar("R")
J_contra = TypeVar("J_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class Died(Exception):
    """Error of a job whose process has died; the message describes how."""


class Worker(Protocol[J_contra, R_co]):
    """Worker process with its current job, as the parent sees it."""

    @property
    def promise(self) -> object:
        """Object to wait for until the job is done, or the process has died."""
        ...

    def begin(self, job: J_contra) -> None: ...

    def result(self) -> R_co | Died: ...

    def end(self) -> None: ...


@dataclass(frozen=True)
class Crew(Generic[J, R]):
    """Functions that `begin` a worker process, and `wait` until some promises are done."""

    begin: Callable[[], Worker[J, R]]
    wait: Callable[[list[Any]], Sequence[object]]


class Workers(Generic[J, R]):
    """At most `num_processes` workers of a crew, used in a `with` block, which ends them."""

    def __init__(self, crew: Crew[J, R], num_processes: int) -> None:
        self._crew, self._most = crew, num_processes
        self._workers: list[Worker[J, R]] = []

    def __enter__(self) -> "Workers[J, R]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.end()

    def results(
        self, jobs: Sequence[J], shall_skip: Callable[[J], R | None] = lambda job: None
    ) -> Iterator[tuple[int, R | Died]]:
        """Yield the number of each job and its result, in order of completion.

        `shall_skip` is called before a job starts; if it returns a result, the job is not run.
        """
        waiting = deque(range(len(jobs)))
        busy: dict[Worker[J, R], int] = {}
        while busy or waiting:
            while waiting and len(busy) < self._most:
                number = waiting.popleft()
                if (known := shall_skip(jobs[number])) is not None:
                    yield number, known
                else:
                    worker = self._idle(busy)
                    worker.begin(jobs[number])
                    busy[worker] = number
            for worker in self._ready(busy):
                number = busy.pop(worker)
                result = worker.result()
                if isinstance(result, Died):
                    self._workers.remove(worker)
                yield number, result

    def _idle(self, busy: dict[Worker[J, R], int]) -> Worker[J, R]:
        for worker in self._workers:
            if worker not in busy:
                return worker
        self._workers.append(self._crew.begin())
        return self._workers[-1]

    def _ready(self, busy: dict[Worker[J, R], int]) -> list[Worker[J, R]]:
        if not busy:
            return []
        ready = self._crew.wait([worker.promise for worker in busy])
        return [worker for worker in busy if worker.promise in ready]


def here(run: Callable[[J], R]) -> Crew[J, R]:
    """Return the crew of this machine, whose processes call `run`.

    `run` must be importable, and jobs and results plain values. An exception of `run` ends the worker.
    """
    return Crew(lambda: _Worker(run), wait)


class _Worker(Generic[J, R]):
    def __init__(self, run: Callable[[J], R]) -> None:
        from sundog.runtime.host.python import safe_path

        context = get_context("spawn")
        self.promise, theirs = context.Pipe()
        self._process: SpawnProcess = context.Process(target=_work, args=(run, theirs), daemon=True)
        # It is born with Ctrl-C blocked: while Python starts it could not be ignored yet.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with safe_path():
                self._process.start()
        except RuntimeError as error:
            if "bootstrapping" not in str(error):
                raise
            os._exit(UNGUARDED)  # This process is being begun: it reads a script that would begin more.
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()

    def begin(self, job: J) -> None:
        with suppress(OSError):  # It has died: its result says so.
            self.promise.send(job)

    def result(self) -> R | Died:
        try:
            result: R = self.promise.recv()
            return result
        except (EOFError, OSError):
            self._process.join()
            self.promise.close()
            if self._process.exitcode == UNGUARDED:
                raise ConfigError(
                    "runs start processes that import your script, which would then start the runs again:"
                    ' put its work below `if __name__ == "__main__":`'
                ) from None
            return Died(_how(self._process.exitcode))

    def end(self) -> None:
        self._process.terminate()
        self._process.join()


def _how(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        name = signal.Signals(-exitcode).name
        hint = ": out of memory?" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{hint}"
    return f"its process ended with exit code {exitcode}"


def _work(run: Callable[[J], R], jobs: Connection) -> None:
    """Run jobs in this process until the parent process exits."""
    from sundog.__main__ import SELDOM

    gc.set_threshold(SELDOM, 50, 50)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            jobs.send(run(jobs.recv()))
        except (EOFError, ConnectionError):
            return


def _end_with_parent() -> None:
    """Exit when the parent process exits: a run without a reader wastes CPU; its files are partial."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
