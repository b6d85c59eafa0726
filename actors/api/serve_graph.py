"""Serving of a graph over HTTP, the same for real and emulated engines."""

import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from sundog.actors.api.context import ServedModel, server_version
from sundog.actors.api.emulation import Emulation
from sundog.actors.api.exposition import registry_of
from sundog.actors.api.front import Behind, Front, OwnFront, spans_to
from sundog.actors.api.keys import ApiKeys
from sundog.actors.api.live import Live
from sundog.actors.api.server_options import ServerOptions
from sundog.actors.config import ConfigError, EngineConfig
from sundog.actors.core.queue.policy import class_name
from sundog.actors.engine.backend import Engine
from sundog.actors.engine.reports import Roster
from sundog.actors.engine.supervisor import Supervision
from sundog.actors.fates import SERVED
from sundog.actors.front.async_llm import FromClients
from sundog.actors.front.codec import TextCodec, Vocabulary
from sundog.actors.graph import open_graph
from sundog.actors.kernel.actor import Actor, Ref, Tap
from sundog.actors.messages import CeaseFetch, FetchKv, Heard
from sundog.actors.metrics.forecast import Forecast
from sundog.actors.metrics.logs import log_request
from sundog.actors.metrics.metrics import Metrics
from sundog.actors.metrics.totals import KvTransferTotals

log = logging.getLogger("sundog.api")

SIGNALS = (signal.SIGINT, signal.SIGTERM)
LEAVE_S = 5.0
EXIT_CODE = 130


class Stopping:
    """Progress of a server's shutdown.

    `drain` is set by the first signal, or by the program that runs the server; `cut` is cancelled by the next
    one. Until `ready` is set there is nothing to drain.
    """

    def __init__(self, drain: trio.Event) -> None:
        self.drain = drain
        self.cut = trio.CancelScope()
        self.ready = trio.Event()
        self._by_force = threading.Timer(LEAVE_S, os._exit, (EXIT_CODE,))
        self._by_force.daemon = True

    def hear(self) -> None:
        """Handle a signal."""
        if self.ready.is_set() and not self.drain.is_set():
            log.info("stopping: running requests may finish; a second signal ends them")
            self.drain.set()
        elif not self.cut.cancel_called:
            self.cut.cancel()
            self._by_force.start()

    @contextmanager
    def until_cut(self) -> Iterator[None]:
        """Run a block that a cut cancels; raises KeyboardInterrupt if one did.

        If leaving takes longer than LEAVE_S, because of a blocked thread, the process is ended by force.
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
    """Handle signals until cancelled; after a cut further signals are ignored."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        with trio.open_signal_receiver(*SIGNALS) as signals:
            task_status.started()
            async for _ in signals:
                stopping.hear()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_IGN if stopping.cut.cancel_called else handler)


if TYPE_CHECKING:
    from sundog.actors.api.exposition.spans import Spans

Driver = Callable[[Ref[FromClients]], Awaitable[None]]
"""Function that acts on a server's engines while it runs."""


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
    front: Front | None = None,
    links: Actor[FetchKv | CeaseFetch] | None = None,
    transfers: KvTransferTotals | None = None,
    driver: Driver | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or `stop`; then finish running requests, and return.

    `new_backend` makes a backend for each replica, and after each crash. A second signal ends running
    requests and raises KeyboardInterrupt; so does one before `on_ready` gets the URL. Without a `front` HTTP
    is served here. The `links` move KV between pools, and count it in `transfers`; the `driver` acts on the
    engines meanwhile. Raises ConfigError if the server cannot start.
    """
    stopping = Stopping(trio.Event() if stop is None else stop)
    with stopping.until_cut(), spans_to(options.otlp_traces_endpoint, served.name) as spans:
        metrics, keys, roster = _metrics(config, options, spans), options.keys(), Roster()
        async with trio.open_nursery() as nursery:
            await nursery.start(obey_signals, stopping)
            front = front or OwnFront(served, codec, options=options, keys=keys, spans=spans)
            nursery.start_soon(_reload_keys, keys, options.api_keys, front)
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
                    roster=roster,
                    links=links,
                ) as llm,
                trio.open_nursery() as serving,
            ):
                live = Live(
                    metrics,
                    _facts(served, config),
                    nursery=nursery,
                    roster=roster,
                    forecast=forecast,
                    draining=stopping.drain,
                )
                first = options.first_engine
                registry = registry_of(
                    metrics, served.name, config, served.max_loras, emulation, first, transfers
                )
                behind = Behind(llm, registry, live=live, stop=stopping.drain, keys=keys, emulation=emulation)
                port = await serving.start(front.serve, behind)
                if driver is not None:
                    nursery.start_soon(driver, llm)
                stopping.ready.set()
                on_ready(options.url(port))
            nursery.cancel_scope.cancel()


async def _reload_keys(keys: ApiKeys | None, file: str | None, front: Front) -> None:
    """Read the key file again at every SIGHUP; an unreadable file changes nothing."""
    if keys is None or file is None:
        return
    path = Path(file)
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            try:
                keys.replace(ApiKeys.read(path))
                await front.keys_changed()
            except ConfigError as error:
                log.warning("%s; the old keys remain in use", error)
            else:
                log.info("the keys of %s are read again", path)


def _metrics(config: EngineConfig, options: ServerOptions, spans: "Spans | None") -> Metrics:
    return Metrics(
        config.replicas,
        config.scheduler.max_model_len,
        prefix_caching=config.scheduler.enable_prefix_caching,
        host_memory=config.has_host_memory,
        says_throughput=options.log_stats,
        on_end=[
            *([log_request] if options.log_requests else []),
            *([] if spans is None else [spans.request_ended]),
        ],
    )


def _facts(served: ServedModel, config: EngineConfig) -> dict[str, object]:
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
