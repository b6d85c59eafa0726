"""A load on a server that is there, the record of what its clients saw, and a simulation beside it.

`Cores` says which share of the machine's processors this process, servers under it and all others had.
"""

import os
import resource
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from runtime.load.clients import Clients, ServerGone
from runtime.load.http import Connections, Site
from runtime.load.rows import Outcome
from runtime.load.server import Endpoint, TargetServer, find_server
from sim.figures.metrics import Summary, summarize
from sim.record.client_record import ClientRecord
from sim.trace.record import TraceRequest
from sundog.builds.replayed import play
from sundog.builds.simulated import Simulated
from sundog.ends import leaves
from sundog.options.simulation import LoadOptions, TermsOptions

PROBE_S = 60.0
"""How long a server may take to say what it takes."""
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """A load's server and the behaviour of its clients; there are as many as needed without `num_clients`."""

    url: str
    model: str | None = None
    endpoint: Endpoint | None = None
    api_key: str | None = None
    num_clients: int | None = None
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Watched:
    """The record, and a bar that shows how far it is."""

    record: ClientRecord
    on_progress: Progress | None

    def due(self, row: TraceRequest, outcome: Outcome) -> None:
        self.record.due(row, outcome)
        if self.on_progress is not None:
            self.on_progress(len(self.record.columns))

    def ended(self, row: TraceRequest, outcome: Outcome) -> None:
        self.record.ended(row, outcome)


def find(load: ClientLoad) -> TargetServer:
    """Ask the server which requests it takes; raises ConfigError where there is none."""
    headers = {} if load.api_key is None else {"Authorization": f"Bearer {load.api_key}"}
    connections = Connections(Site.of(load.url), headers)

    async def ask() -> TargetServer:
        try:
            return await find_server(connections, load.model, load.endpoint, load.timeout_s or PROBE_S)
        finally:
            await connections.close()

    return trio.run(ask)


def measure(
    load: ClientLoad,
    server: TargetServer,
    rows: Iterable[TraceRequest],
    record: ClientRecord,
    on_progress: Progress | None = None,
) -> None:
    """Ask for all rows; raises KeyboardInterrupt or ServerGone, with what came before in the record.

    Prompts are new ones each time: what the server has cached of an earlier load is no help to it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    clients = Clients(
        server,
        _Watched(record, on_progress),
        salt=secrets.token_hex(8),
        num_clients=load.num_clients,
        timeout_s=load.timeout_s,
    )
    try:
        trio.run(clients.play, rows)
    except BaseExceptionGroup as errors:
        for error in leaves(errors):
            if isinstance(error, KeyboardInterrupt | ServerGone):
                raise error from None
        raise
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def as_answered(rows: Sequence[TraceRequest], record: ClientRecord) -> list[TraceRequest]:
    """The requests with the lengths that the server counted, where it answered them."""
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
    return summarize(play(simulated, rows, clients, seed=0), simulated.terms(terms))


PROC = Path("/proc")
ENGINE = "sundog engine "
"""How processes of engines are called (`runtime.worker`)."""
LOADED = 0.1
"""A machine is loaded if others have more of its cores than that."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of all cores, from 0 to 1: this process, servers under it, their engines, and all others."""

    client: float
    server: float
    engine: float
    others: float

    @property
    def remark(self) -> str | None:
        """A warning where other processes disturbed the measurement, else None."""
        if self.others <= LOADED:
            return None
        return (
            f"other processes had {self.others:.0%} of the cores meanwhile, which makes what is measured long"
            " and uneven: measure again when the machine is quiet"
        )


class Cores:
    """Watches the cores from when it is made."""

    def __init__(self) -> None:
        self._begin = _seconds()
        self._begin_s = time.monotonic()

    def shares(self) -> Shares | None:
        """Since it was made; None where the system does not tell (it is no Linux), or no time has passed."""
        end, elapsed_s = _seconds(), time.monotonic() - self._begin_s
        if end is None or self._begin is None or elapsed_s <= 0:
            return None
        total_s = elapsed_s * (os.cpu_count() or 1)
        own = [max(0.0, after - before) for after, before in zip(end[1:], self._begin[1:], strict=True)]
        others_s = end[0] - self._begin[0] - sum(own)
        client, server, engine = (seconds / total_s for seconds in own)
        return Shares(client, server, engine, min(max(others_s / total_s, 0.0), 1.0))


def _seconds() -> tuple[float, float, float, float] | None:
    """Processor seconds so far: of everything, this process, processes under it that are no engines, engines.

    A process that ended counts where it was waited for.
    """
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    try:
        user, nice, system, _idle, _wait, *rest = map(int, (PROC / "stat").read_text().split()[1:9])
        found = dict(_processes())
    except (OSError, ValueError):  # no such files, or not Linux's
        return None
    own = found[os.getpid()][2]
    under = [(name, ticks) for pid, (name, _, ticks) in found.items() if _is_under(pid, found)]
    engines = sum(ticks for name, ticks in under if name.startswith(ENGINE))
    servers = sum(ticks for _, ticks in under) - engines
    everything = user + nice + system + sum(rest)
    return everything * tick_s, own * tick_s, servers * tick_s, engines * tick_s


Process = tuple[str, int, int]
"""Its name, its parent, and its ticks with those of children that it waited for."""


def _processes() -> list[tuple[int, Process]]:
    found = []
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            try:
                name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
            except OSError:  # it has just ended
                continue
            fields = rest.split()
            found.append((int(folder.name), (name, int(fields[1]), sum(map(int, fields[11:15])))))
    return found


def _is_under(pid: int, found: dict[int, Process]) -> bool:
    """Whether this process is among its ancestors."""
    while pid in found:
        pid = found[pid][1]
        if pid == os.getpid():
            return True
    return False
