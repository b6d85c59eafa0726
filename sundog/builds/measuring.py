"""Load on a running server, the record of its clients, and a simulation for comparison.

`Cores` measures the share of the machine's processors used by other processes.
"""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import trio

from sundog.builds.load_processes import LoadTerms, most_files, play_in_processes, played, shares_of
from sundog.builds.replayed import play
from sundog.builds.simulated import asked_terms
from sundog.ends import leaves
from sundog.options.simulation import LoadOptions, TermsOptions
from sundog.runtime.load.clients import ServerGone
from sundog.runtime.load.cpu_share import CpuMeter, CpuShare
from sundog.runtime.load.rows import Outcome
from sundog.runtime.load.server import Endpoint, TargetServer, find_server
from sundog.runtime.load.server_client import ServerClient
from sundog.sim.deployment.record import Simulated
from sundog.sim.figures.metrics import Summary, summarize
from sundog.sim.record.client_record import ClientRecord
from sundog.sim.trace.record import TraceRequest

PROBE_S = 60.0
"""Seconds within which a server must report its abilities."""
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """Server of a load and the behaviour of its clients, unlimited without `num_clients`."""

    url: str
    model: str | None = None
    endpoint: Endpoint | None = None
    api_key: str | None = None
    num_clients: int | None = None
    timeout_s: float | None = None
    num_processes: int = 1


@dataclass(frozen=True, slots=True)
class _Watched:
    record: ClientRecord
    on_progress: Progress | None

    def due(self, row: TraceRequest, outcome: Outcome) -> None:
        self.record.due(row, outcome)
        if self.on_progress is not None:
            self.on_progress(len(self.record.columns))

    def ended(self, row: TraceRequest, outcome: Outcome) -> None:
        self.record.ended(row, outcome)

    def took(self, share: CpuShare) -> None:
        self.record.cpu_shares.append((share.mean, share.most))


def find(load: ClientLoad) -> TargetServer:
    """Detect which requests the server accepts; raises ConfigError if there is no server."""
    client = ServerClient.of(load.url, load.api_key)

    async def ask() -> TargetServer:
        try:
            return await find_server(client, load.model, load.endpoint, load.timeout_s or PROBE_S)
        finally:
            await client.close()

    return trio.run(ask)


def measure(
    load: ClientLoad,
    server: TargetServer,
    rows: Iterable[TraceRequest],
    record: ClientRecord,
    on_progress: Progress | None = None,
) -> None:
    """Send all rows; raises KeyboardInterrupt, ServerGone or LoadBroken.

    After an error the record contains all events until then.

    Prompts are new in each measurement, so that they do not hit blocks cached by an earlier load.
    """
    watched = _Watched(record, on_progress)
    terms = LoadTerms(num_clients=load.num_clients, timeout_s=load.timeout_s)
    if load.num_processes > 1:
        shares, clients = shares_of(list(rows), load.num_processes, load.num_clients)
        play_in_processes(server, shares, [replace(terms, num_clients=each) for each in clients], watched)
        return
    meter = CpuMeter()
    try:
        with most_files():
            trio.run(played, server, rows, watched, terms, meter)
    except BaseExceptionGroup as errors:
        for error in leaves(errors):
            if isinstance(error, KeyboardInterrupt | ServerGone):
                raise error from None
        raise
    finally:
        watched.took(meter.share())


def as_answered(rows: Sequence[TraceRequest], record: ClientRecord) -> list[TraceRequest]:
    """Return the requests with the lengths that the server counted, or with their own if they were not
    answered.
    """
    columns, found = record.columns, {}
    for index, name in enumerate(columns.request_id):
        if columns.reason[index] in ("stop", "length"):
            found[name] = (columns.num_prompt_tokens[index], columns.num_output_tokens[index])
    return [
        row._replace(num_prompt_tokens=prompt, num_output_tokens=max(output, 1))
        for row in rows
        for prompt, output in (found.get(row.request_id, (row.num_prompt_tokens, row.num_output_tokens)),)
    ]


def predict(
    load: ClientLoad, simulated: Simulated, terms: TermsOptions, rows: Iterable[TraceRequest]
) -> Summary:
    """Simulate the same requests, and return their figures."""
    clients = LoadOptions(max_concurrency=load.num_clients, client_timeout=load.timeout_s)
    return summarize(play(simulated, rows, clients, seed=0), simulated.terms(asked_terms(terms)))


LOADED = 0.1
"""Share of the cores used by others from which a machine counts as loaded."""


class Cores:
    """Meter, from its creation, of the share of all cores that others use.

    Others are all processes but this one and its descendants.
    """

    def __init__(self) -> None:
        self._begin = _seconds_of_others()
        self._begin_s = time.monotonic()

    def others(self) -> float:
        """Return the share since its creation, from 0 to 1."""
        elapsed_s = (time.monotonic() - self._begin_s) * (os.cpu_count() or 1)
        return min(max((_seconds_of_others() - self._begin) / elapsed_s, 0.0), 1.0) if elapsed_s > 0 else 0.0


def disturbed(others: float) -> str | None:
    """Return a warning if other processes disturbed the measurement, else None."""
    if others <= LOADED:
        return None
    return (
        f"other processes had {others:.0%} of the cores meanwhile, which makes what is measured long"
        " and uneven: measure again when the machine is quiet"
    )


def _seconds_of_others() -> float:
    """Return the processor seconds of all other processes, including ended ones, which the system adds to
    their parents.
    """
    import psutil  # type: ignore[import-untyped]  # ships no types

    everything, me = psutil.cpu_times()._asdict(), psutil.Process()
    own_s = 0.0
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            own_s += sum(process.cpu_times()[:4])
    return float(sum(everything.values()) - sum(everything.get(name, 0.0) for name in NOT_BUSY) - own_s)


NOT_BUSY = ("idle", "iowait", "guest", "guest_nice")
"""Times in which cores are idle, and times that the system counts twice."""
