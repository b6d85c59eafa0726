"""Serve the graph over HTTP: the same in the real world and in the emulated one."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from actors.actor import Actor, Tap
from actors.api.app import create_app
from actors.api.edge.server import serve_http
from actors.api.service import ServedModel
from actors.config import EngineConfig
from actors.engine.runner import Backend
from actors.front.intake import ModelFacts, Tokenizer
from actors.graph import open_graph


@dataclass(frozen=True, slots=True)
class Door:
    """Where the server listens and whom it lets in; port 0 takes a free one.

    After a signal to stop, running streams have `grace_s` to finish.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    grace_s: float = 30.0


async def serve(
    config: EngineConfig,
    backends: Sequence[Backend],
    served: ServedModel,
    tokenizer: Tokenizer,
    facts: ModelFacts,
    door: Door,
    *,
    on_ready: Callable[[str], None] = lambda url: None,
    stop: trio.Event | None = None,
    listeners: Sequence[Actor] = (),
    tap: Tap | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or `stop`; then finish what runs, and return.

    `on_ready` gets the base URL once requests are welcome. Raises ConfigError if it cannot
    listen or the engine cannot start.
    """
    stop = trio.Event() if stop is None else stop
    async with (
        open_graph(config, backends, tokenizer=tokenizer, model=facts, listeners=listeners, tap=tap) as llm,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(_stop_on_signal, stop)
        app = create_app(llm, served, api_key=door.api_key)
        async with trio.open_nursery() as serving:
            port = await serving.start(_serve_http, app, door, stop)
            host = f"[{door.host}]" if ":" in door.host else door.host
            on_ready(f"http://{host}:{port}")
        nursery.cancel_scope.cancel()


async def _serve_http(
    app: object, door: Door, stop: trio.Event, *, task_status: trio.TaskStatus[int]
) -> None:
    await serve_http(
        app,  # type: ignore[arg-type]  # create_app's own product
        host=door.host,
        port=door.port,
        shutdown=stop.wait,
        grace_s=door.grace_s,
        task_status=task_status,
    )


async def _stop_on_signal(
    stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            stop.set()
