"""Serve the graph over HTTP: the same in the real world and in the emulated one."""

import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from prometheus_client import CollectorRegistry

from actors.actor import Actor, Tap
from actors.api.app import BODY_TIMEOUT_S, MAX_BODY_BYTES, create_app
from actors.api.context import PLAIN_ANSWERS, AnswerFormats, ServedModel
from actors.api.edge.app import ApiApp
from actors.api.edge.http_server import USUAL, HttpSettings, serve_http
from actors.api.edge.listener import check_address, raise_descriptor_limit
from actors.api.emulation import Emulation
from actors.api.errors import SHAPES
from actors.api.exposition import registry_of
from actors.api.in_flight import InFlight
from actors.api.keys import Keys
from actors.api.live import Live
from actors.api.routes.operations import server_version
from actors.api.signals import Stopping, obey_signals
from actors.config import ConfigError, EngineConfig
from actors.core.policies.policy import class_name
from actors.engine.backend import Engine
from actors.engine.supervisor import Supervision
from actors.fates import SERVED
from actors.front.codec import TextCodec, Vocabulary
from actors.graph import open_graph
from actors.messages import Heard
from actors.metrics.forecast import Forecast
from actors.metrics.logs import log_request
from actors.metrics.metrics import Metrics

if TYPE_CHECKING:
    from actors.api.exposition.spans import Spans

log = logging.getLogger("sundog.api")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Where the server listens and which requests it lets in; port 0 takes a free one.

    After a signal to stop, running streams have `grace_s` to finish. A larger body than
    `max_body_bytes` is refused. Errors are spelled as `compat` does, vllm or openai. With `log_requests` each
    request is a line of the log at its end, with `log_stats` each engine's throughput every ten seconds.
    Spans of requests go to `otlp_traces_endpoint`, if there is one.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    api_keys: str | None = None
    admin_key: str | None = None
    grace_s: float = 30.0
    max_body_bytes: int = MAX_BODY_BYTES
    compat: str = "vllm"
    log_requests: bool = True
    log_stats: bool = True
    answers: AnswerFormats = PLAIN_ANSWERS
    otlp_traces_endpoint: str | None = None
    http: HttpSettings = USUAL

    def keys(self) -> Keys | None:
        """Whom the server lets in, None for all; raises ConfigError for a file that cannot be read."""
        if self.api_keys is not None and self.api_key is not None:
            raise ConfigError("--api-key and --api-keys are both given: put the key into the file")
        if self.api_keys is not None:
            return Keys.read(Path(self.api_keys))
        return None if self.api_key is None else Keys.one(self.api_key)

    def url(self, port: int) -> str:
        """Where clients reach a server that listens at this port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.http.tls is None else 'https'}://{host}:{port}"

    def check_address(self) -> None:
        """Raise ConfigError if a server could not listen there now: before a model is loaded, say."""
        if self.http.tls is not None:
            self.http.tls.context()
        check_address(self.host, self.port)

    def check_traces(self) -> None:
        """Raise ConfigError if spans are asked for and could be sent nowhere."""
        if self.otlp_traces_endpoint is not None:
            from actors.api.exposition.otlp import exporter_to

            exporter_to(self.otlp_traces_endpoint).shutdown()


async def serve_graph(
    config: EngineConfig,
    new_backend: Callable[[int], Engine],
    served: ServedModel,
    codec: TextCodec,
    vocabulary: Vocabulary,
    options: ServerOptions,
    *,
    on_ready: Callable[[str], None] = lambda url: None,
    stop: trio.Event | None = None,
    listeners: Sequence[Actor[Heard]] = (),
    tap: Tap | None = None,
    forecast: Forecast | None = None,
    emulation: Emulation | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or `stop`; then finish what runs, and return.

    `new_backend` makes a replica's backend, anew when its engine has crashed. A second signal cuts what runs
    and raises KeyboardInterrupt; so does one before `on_ready` gets the URL. Raises ConfigError if it cannot.
    """
    stopping, scale = Stopping(stop or trio.Event()), 1.0 if emulation is None else emulation.lag.time_scale
    with stopping.until_cut(), _spans(options.otlp_traces_endpoint, served.name) as spans:
        metrics, keys = _metrics(config, options, spans), options.keys()
        async with trio.open_nursery() as nursery:
            await nursery.start(obey_signals, stopping)
            nursery.start_soon(_reload_keys, keys, options.api_keys)
            async with (
                open_graph(
                    config,
                    [new_backend(replica) for replica in range(config.replicas)],
                    codec=codec,
                    vocabulary=vocabulary,
                    listeners=[metrics, *listeners],
                    tap=tap,
                    supervision=Supervision(SERVED, new_backend),
                    front_end=None if emulation is None else emulation.front_end,
                ) as llm,
                trio.open_nursery() as serving,
            ):
                app = create_app(
                    llm,
                    served,
                    codec=codec,
                    spell=SHAPES[options.compat],
                    answers=options.answers,
                    keys=keys,
                    admin_key=options.admin_key,
                    max_body_bytes=options.max_body_bytes,
                    spans=spans,
                    body_timeout_s=BODY_TIMEOUT_S * scale,
                    http=options.http,
                    live=Live(metrics, _facts(served, config), forecast, stopping.drain),
                    registry=_registry(metrics, served, config, emulation),
                    emulation=emulation,
                    in_flight=(in_flight := InFlight()),
                )
                port = await serving.start(_serve_http, app, options, stopping.drain, in_flight, scale)
                stopping.ready.set()
                on_ready(options.url(port))
            nursery.cancel_scope.cancel()


async def _reload_keys(keys: Keys | None, file: str | None) -> None:
    """Read the keys again at every SIGHUP, if they are in a file; one that cannot be read changes nothing."""
    if keys is None or file is None:
        return
    path = Path(file)
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            try:
                keys.replace(Keys.read(path))
            except ConfigError as error:
                log.warning("%s; the keys stay as they are", error)
            else:
                log.info("the keys of %s are read again", path)


@contextmanager
def _spans(endpoint: str | None, model: str) -> "Iterator[Spans | None]":
    """Spans that go to this collector, the last of them at the end; without one nothing is even imported."""
    if endpoint is None:
        yield None
        return
    from actors.api.exposition.otlp import tracer_provider
    from actors.api.exposition.spans import Spans

    provider = tracer_provider(endpoint)
    try:
        yield Spans(provider.get_tracer("sundog"), model)
    finally:
        provider.shutdown()


def _registry(
    metrics: Metrics, served: ServedModel, config: EngineConfig, emulation: Emulation | None
) -> CollectorRegistry:
    return registry_of(metrics, served.name, config, served.max_loras, emulation)


def _metrics(config: EngineConfig, options: ServerOptions, spans: "Spans | None") -> Metrics:
    return Metrics(
        config.replicas,
        config.scheduler.max_model_len,
        prefix_caching=config.scheduler.enable_prefix_caching,
        says_throughput=options.log_stats,
        on_end=[
            *([log_request] if options.log_requests else []),
            *([] if spans is None else [spans.request_ended]),
        ],
    )


def _facts(served: ServedModel, config: EngineConfig) -> dict[str, object]:
    """What the live page says of the server."""
    scheduler = config.scheduler
    return {
        "model": served.name,
        "max_model_len": served.max_model_len,
        "policy": class_name(config.policy),
        "router": class_name(config.router),
        "max_num_seqs": scheduler.max_num_running,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "version": server_version(),
    }


async def _serve_http(
    app: ApiApp,
    options: ServerOptions,
    stop: trio.Event,
    in_flight: InFlight,
    scale: float,
    *,
    task_status: trio.TaskStatus[int],
) -> None:
    """A second of people's is `scale` seconds of the run's clock."""

    async def drain() -> None:
        in_flight.close()
        await in_flight.until_empty()

    raise_descriptor_limit()
    await serve_http(
        app,
        host=options.host,
        port=options.port,
        shutdown=stop.wait,
        drain=drain,
        grace_s=options.grace_s * scale,
        settings=options.http.on_clock(scale),
        task_status=task_status,
    )
