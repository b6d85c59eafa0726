"""Front of a graph: HTTP in this process, or in several at one port (`runtime/doors`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import trio
from prometheus_client import CollectorRegistry

from sundog.actors.api.address import listen
from sundog.actors.api.app import BODY_TIMEOUT_S, create_app
from sundog.actors.api.context import ServedModel
from sundog.actors.api.emulation import Emulation
from sundog.actors.api.errors import SHAPES, log_refusals
from sundog.actors.api.exposition import Exposition, OwnExposition
from sundog.actors.api.in_flight import LLM, AnswerControl, AnswersInFlight
from sundog.actors.api.keys import ApiKeys
from sundog.actors.api.limits import ConcurrencyLimits
from sundog.actors.api.live import Live, LiveEvents
from sundog.actors.api.server_options import ServerOptions
from sundog.actors.front.async_llm import FromClients
from sundog.actors.front.codec import TextCodec
from sundog.actors.http.quart_app import HttpApp
from sundog.actors.http.server import serve_http
from sundog.actors.kernel.actor import Ref

if TYPE_CHECKING:
    from sundog.actors.api.exposition.spans import Spans


@contextmanager
def spans_to(endpoint: str | None, model: str) -> "Iterator[Spans | None]":
    """Yield spans to this collector, flushed at the end; None without one, and nothing is imported."""
    if endpoint is None:
        yield None
        return
    from sundog.actors.api.exposition.spans import Spans, tracer_provider

    provider = tracer_provider(endpoint)
    try:
        yield Spans(provider.get_tracer("sundog"), model)
    finally:
        provider.shutdown()


@dataclass(frozen=True, slots=True)
class Behind:
    """Graph behind a front: AsyncLLM's address, metrics, and events of the live page.

    `keys` are the allowed clients, None for all; `stop` is set when the server shuts down.
    """

    llm: Ref[FromClients]
    registry: CollectorRegistry
    live: Live
    stop: trio.Event
    keys: ApiKeys | None = None
    emulation: Emulation | None = None

    @property
    def time_scale(self) -> float:
        """Seconds of the run's clock per real second."""
        return 1.0 if self.emulation is None else self.emulation.lag.time_scale


class Front(Protocol):
    """Server of HTTP until it is stopped, and until running requests end or the grace period is over.

    Reports its port. Raises ConfigError if it cannot listen.
    """

    async def serve(self, behind: Behind, *, task_status: trio.TaskStatus[int]) -> None: ...

    async def keys_changed(self) -> None:
        """Apply new keys from now on."""
        ...


@dataclass(frozen=True, slots=True)
class OwnFront:
    """Front that serves HTTP in this process."""

    served: ServedModel
    codec: TextCodec
    options: ServerOptions
    keys: ApiKeys | None
    spans: "Spans | None"

    async def serve(self, behind: Behind, *, task_status: trio.TaskStatus[int]) -> None:
        in_flight, options = AnswersInFlight(behind.llm), self.options
        app = create_app(
            behind.llm,
            self.served,
            codec=self.codec,
            spell=SHAPES[options.compat],
            answers=options.answers,
            keys=self.keys,
            admin_key=options.admin_key,
            max_body_bytes=options.max_body_bytes,
            http=options.http,
            spans=self.spans,
            body_timeout_s=BODY_TIMEOUT_S * behind.time_scale,
            live=behind.live,
            emulation=behind.emulation,
            exposition=OwnExposition(behind.registry, behind.live.posted),
            in_flight=in_flight,
        )
        scale = behind.time_scale
        await serve_app(app, options, behind.stop, in_flight, scale=scale, task_status=task_status)

    async def keys_changed(self) -> None:
        """Do nothing: the routes share the same object."""


class RemoteServer(Protocol):
    """Server as seen by a door at the other end of its link."""

    llm: LLM
    control: AnswerControl
    exposition: Exposition
    live: LiveEvents
    limits: ConcurrencyLimits
    stop: trio.Event

    async def keys(self) -> ApiKeys | None:
        """Return the keys of allowed clients, which change when the server reports it."""
        ...

    def open(self, control: AnswerControl) -> None:
        """Let the server control requests here."""
        ...


@dataclass(frozen=True, slots=True)
class Door:
    """HTTP in one of several processes, in front of a graph in another."""

    served: ServedModel
    codec: TextCodec
    options: ServerOptions

    async def serve(self, remote: RemoteServer, *, task_status: trio.TaskStatus[int]) -> None:
        """Serve like `Front.serve`, without storing responses: the next request may reach another door."""
        in_flight, options = AnswersInFlight(remote.llm), self.options
        keys = await remote.keys()
        with spans_to(options.otlp_traces_endpoint, self.served.name) as spans:
            app = create_app(
                remote.llm,
                self.served,
                codec=self.codec,
                spell=SHAPES[options.compat],
                answers=options.answers,
                keys=keys,
                admin_key=options.admin_key,
                max_body_bytes=options.max_body_bytes,
                http=options.http,
                spans=spans,
                live=remote.live,
                exposition=remote.exposition,
                in_flight=in_flight,
                control=remote.control,
                limits=remote.limits,
                keeps_responses=False,
            )
            remote.open(in_flight)
            await serve_app(
                *(app, options, remote.stop, in_flight), shares_port=True, task_status=task_status
            )


async def serve_app(
    app: HttpApp,
    options: ServerOptions,
    stop: trio.Event,
    in_flight: AnswersInFlight,
    *,
    shares_port: bool = False,
    scale: float = 1.0,
    task_status: trio.TaskStatus[int],
) -> None:
    """Serve until `stop`; then refuse new requests while running ones finish.

    A real second is `scale` seconds of the run's clock.
    """

    async def drain() -> None:
        await in_flight.close()
        await in_flight.until_empty()

    if options.log_requests:
        log_refusals(app)
    http = options.http
    settings = replace(http, keep_alive_s=http.keep_alive_s * scale, greeting_s=http.greeting_s * scale)
    with listen(options.host, options.port, backlog=http.backlog, shares_port=shares_port) as listening:
        task_status.started(listening.getsockname()[1])
        grace_s = options.grace_s * scale
        await serve_http(app, listening, shutdown=stop.wait, drain=drain, grace_s=grace_s, settings=settings)
