"""A load on a server that is there, the record of what its clients saw, and a simulation beside it."""

import resource
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import trio

from runtime.load.clients import Clients, ServerGone
from runtime.load.http import Connections, Site
from runtime.load.rows import Outcome
from runtime.load.server import Endpoint, Server, find_server
from sim.figures.metrics import Summary, summarize
from sim.record.client_record import ClientRecord
from sim.replay import replay
from sim.trace.record import TraceRequest
from sundog.builds.simulated import Simulated
from sundog.ends import leaves
from sundog.options.simulation import Terms

PROBE_S = 60.0
"""How long a server may take to say what it takes."""
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Load:
    """Where the load goes, and how its clients behave; as many as are needed without `num_clients`."""

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


def find(load: Load) -> Server:
    """What the server takes; raises ConfigError where there is none."""
    headers = {} if load.api_key is None else {"Authorization": f"Bearer {load.api_key}"}
    connections = Connections(Site.of(load.url), headers)

    async def ask() -> Server:
        try:
            return await find_server(connections, load.model, load.endpoint, load.timeout_s or PROBE_S)
        finally:
            await connections.close()

    return trio.run(ask)


def measure(
    load: Load,
    server: Server,
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


def predict(load: Load, simulated: Simulated, terms: Terms, rows: Iterable[TraceRequest]) -> Summary:
    """What the simulation says of the same requests."""
    recorder = replay(
        rows,
        simulated.config,
        simulated.cost,
        simulated.capacity,
        front_end_s=simulated.front_end_s,
        max_concurrency=load.num_clients,
        client_timeout_s=load.timeout_s,
    )
    return summarize(recorder, simulated.terms(terms))
