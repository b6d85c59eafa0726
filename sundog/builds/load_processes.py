"""Load on a server by several client processes with a common clock.

Each session goes to one of the processes. They send events regularly to the parent process, which alone keeps
the record. Law: every request is sent at its time in the trace, whichever process sends it.
"""

import math
import resource
import secrets
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Literal, Protocol

import trio

from sundog.actors.config import ConfigError
from sundog.ends import leaves
from sundog.runtime.host.python import safe_path
from sundog.runtime.load.clients import Clients, LoadListener, ServerGone
from sundog.runtime.load.cpu_share import CpuMeter, CpuShare
from sundog.runtime.load.rows import Outcome
from sundog.runtime.load.server import TargetServer
from sundog.runtime.worker.life import bind_to
from sundog.sim.trace.record import TraceRequest
from sundog.sim.trace.sessions import whole_sessions

REPORT_S = 1.0
"""Seconds between two reports of a process."""
AHEAD_S = 0.5
"""Seconds between the moment when all processes are ready and the beginning of the load."""
LEAVE_S = 10.0
"""Seconds within which processes report their last events after the signal to stop."""


@dataclass(frozen=True, slots=True)
class LoadTerms:
    """Behaviour of clients: unlimited without `num_clients`, with the timeout `timeout_s`."""

    salt: str = field(default_factory=lambda: secrets.token_hex(8))
    num_clients: int | None = None
    timeout_s: float | None = None


@contextmanager
def most_files() -> Iterator[None]:
    """Raise the limit of open files to what the system permits, for connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def shares_of(
    rows: Sequence[TraceRequest], num_processes: int, num_clients: int | None
) -> tuple[list[list[TraceRequest]], list[int | None]]:
    """Return the rows and the number of clients of each process; raises ConfigError if there are fewer rows
    or clients than processes.

    A session goes as a whole to the process with the fewest tokens so far.
    """
    groups = whole_sessions(rows)
    if len(groups) < num_processes:
        raise ConfigError(
            f"--processes is {num_processes}, and the trace has {len(groups)} requests or sessions that can"
            f" be apart: give {len(groups)} at most"
        )
    if num_clients is not None and num_clients < num_processes:
        raise ConfigError(
            f"--processes is {num_processes}, and --clients {num_clients}: each process needs a client"
        )
    numbers: dict[str, int] = {}
    tokens = [0] * num_processes
    for group in groups:
        number = tokens.index(min(tokens))
        tokens[number] += sum(row.num_prompt_tokens + row.num_output_tokens for row in group)
        numbers.update((row.request_id, number) for row in group)
    shares: list[list[TraceRequest]] = [[] for _ in range(num_processes)]
    for row in rows:
        shares[numbers[row.request_id]].append(row)
    if num_clients is None:
        return shares, [None] * num_processes
    each, more = divmod(num_clients, num_processes)
    return shares, [each + (number < more) for number in range(num_processes)]


Beside = Callable[[trio.CancelScope], Awaitable[None]]
"""Task that runs beside a load, and may cancel it."""
What = Literal["due", "ended"]
Happened = tuple[What, str, Outcome]
"""Event of a request, by the request's id."""


class LoadBroken(Exception):
    """A process of the load has died."""


@dataclass(frozen=True, slots=True)
class _Job:
    server: TargetServer
    rows: Sequence[TraceRequest]
    terms: LoadTerms


@dataclass(frozen=True, slots=True)
class _Done:
    share: CpuShare
    gone: str | None
    """Message of `ServerGone`, if the process raised it."""


@dataclass(frozen=True, slots=True)
class _Died:
    how: str


Said = _Done | _Died | list[Happened]
"""Message of a process, or the fact that it ended without one."""


class Record(Protocol):
    """Record of a load, including the processor time of its processes."""

    def due(self, row: TraceRequest, seen: Outcome, /) -> None: ...
    def ended(self, row: TraceRequest, seen: Outcome, /) -> None: ...
    def took(self, share: CpuShare, /) -> None: ...


def play_in_processes(
    server: TargetServer, shares: Sequence[Sequence[TraceRequest]], terms: Sequence[LoadTerms], record: Record
) -> None:
    """Send all rows; raises KeyboardInterrupt, ServerGone or LoadBroken.

    After an error the record contains all events until then.
    """
    rows = {row.request_id: row for share in shares for row in share}
    jobs = [_Job(server, share, each) for share, each in zip(shares, terms, strict=True)]
    with _Processes(len(shares)) as processes:
        try:
            processes.begin(jobs)
            processes.hear(partial(_take_or_raise, rows=rows, record=record))
        except BaseException:
            processes.stop()
            processes.hear(partial(_take, rows=rows, record=record), time.monotonic() + LEAVE_S)
            raise


@contextmanager
def interrupt_held() -> Iterator[None]:
    """Hold back the first Ctrl-C until the block is over; a second one interrupts it at once."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    held: list[int] = []

    def hold(number: int, _frame: object) -> None:
        if held:
            raise KeyboardInterrupt
        held.append(number)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if held:
        signal.raise_signal(signal.SIGINT)


def _take_or_raise(said: Said, rows: Mapping[str, TraceRequest], record: Record) -> None:
    if isinstance(said, _Died):
        raise LoadBroken(said.how)
    if isinstance(said, _Done) and said.gone is not None:
        raise ServerGone(said.gone)
    _take(said, rows, record)


def _take(said: Said, rows: Mapping[str, TraceRequest], record: Record) -> None:
    if isinstance(said, _Done):
        record.took(said.share)
    elif isinstance(said, list):
        for what, name, outcome in said:
            (record.due if what == "due" else record.ended)(rows[name], outcome)


class _Processes:
    def __init__(self, count: int) -> None:
        self._count = count
        self._pipes: list[Connection] = []
        self._processes: list[SpawnProcess] = []
        self._at_work: set[Connection] = set()

    def __enter__(self) -> "_Processes":
        return self

    def __exit__(self, *_error: object) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()

    def begin(self, jobs: Sequence[_Job]) -> None:
        """Start all processes, and the load once all are ready; raises LoadBroken if one dies."""
        context = get_context("spawn")
        for job in jobs:
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs,), daemon=True)
            # Ctrl-C is for this process; in the others it is blocked while Python starts.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                with safe_path():
                    process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
            self._at_work.add(ours)
            with suppress(OSError):  # it has died, which is found out below
                ours.send(job)
        for pipe in self._pipes:
            if isinstance(said := self._receive(pipe), _Died):
                raise LoadBroken(said.how)
        start_s = time.monotonic() + AHEAD_S
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.send(start_s)

    def hear(self, take: Callable[[Said], None], before_s: float = math.inf) -> None:
        """Pass the processes' messages to `take` until all are done, or until `before_s` on the clock
        `time.monotonic`.

        Ctrl-C takes effect between two messages: one received and not taken would be lost.
        """
        while self._at_work:
            left_s = None if before_s == math.inf else max(0.0, before_s - time.monotonic())
            if not (ready := wait(list(self._at_work), left_s)):
                return
            for pipe in self._pipes:
                if pipe in ready:
                    with interrupt_held():
                        said = self._receive(pipe)
                        if not isinstance(said, list):
                            self._at_work.discard(pipe)
                        take(said)

    def stop(self) -> None:
        for pipe in self._at_work:
            with suppress(OSError):
                pipe.send("stop")

    def _receive(self, pipe: Connection) -> Said:
        try:
            said: _Done | list[Happened] = pipe.recv()
            return said
        except (EOFError, OSError):
            number = self._pipes.index(pipe)
            process = self._processes[number]
            process.join(LEAVE_S)
            code = process.exitcode
            how = f"exit code {code}" if code is None or code >= 0 else signal.Signals(-code).name
            hint = " (out of memory?)" if how == "SIGKILL" else ""
            return _Died(
                f"process {number + 1} of {self._count} of the load ended with {how}{hint}: the results of"
                " its requests are lost"
            )


@dataclass(slots=True)
class _Reports:
    kept: list[Happened] = field(default_factory=list)

    def due(self, row: TraceRequest, outcome: Outcome) -> None:
        # As it is now: what follows is sent when the request has ended.
        self.kept.append(("due", row.request_id, replace(outcome)))

    def ended(self, row: TraceRequest, outcome: Outcome) -> None:
        self.kept.append(("ended", row.request_id, outcome))

    def send(self, pipe: Connection) -> None:
        kept, self.kept = self.kept, []
        if kept:
            pipe.send(kept)


def _work(pipe: Connection) -> None:
    """Play one share of the load in this process, and report its events; ends with the parent process."""
    from multiprocessing import parent_process

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None and parent.pid is not None:
        bind_to(parent.pid, signal.SIGKILL)
    job = pipe.recv()
    if isinstance(job, _Job):
        trio.run(_play, pipe, job)


async def _play(pipe: Connection, job: _Job) -> None:
    reports, terms = _Reports(), job.terms
    pipe.send([])
    start_s = pipe.recv()
    if not isinstance(start_s, float):
        return
    meter, gone = CpuMeter(), None
    try:
        with most_files():
            await played(job.server, job.rows, reports, terms, meter, start_s, _reporting(pipe, reports))
    except BaseExceptionGroup as errors:
        found = [error for error in leaves(errors) if isinstance(error, ServerGone)]
        if not found:
            raise
        gone = str(found[0])
    reports.send(pipe)
    pipe.send(_Done(meter.share(), gone))


def _reporting(pipe: Connection, reports: _Reports) -> Beside:
    async def report(scope: trio.CancelScope) -> None:
        while True:
            with trio.move_on_after(REPORT_S):
                await trio.lowlevel.wait_readable(pipe.fileno())
                scope.cancel()
                return
            reports.send(pipe)

    return report


async def played(
    server: TargetServer,
    rows: Iterable[TraceRequest],
    listener: LoadListener[TraceRequest],
    terms: LoadTerms,
    meter: CpuMeter,
    start_s: float | None = None,
    beside: Beside | None = None,
) -> None:
    """Send the rows from this process, from the time `start_s` of `time.monotonic` on, or from now on."""
    clients = Clients(
        server, listener, salt=terms.salt, num_clients=terms.num_clients, timeout_s=terms.timeout_s
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(meter.watch)
        if beside is not None:
            nursery.start_soon(beside, nursery.cancel_scope)
        begin_s = None if start_s is None else trio.current_time() + start_s - time.monotonic()
        await clients.play(rows, begin_s)
        nursery.cancel_scope.cancel()
