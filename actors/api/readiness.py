"""A port that says at /health, /ready and /readyz whether all of several servers take requests."""

from collections.abc import Awaitable, Callable, Sequence

import trio
from quart import Response

from actors.http.quart_app import json_response, new_app
from actors.http.server import serve_http


async def serve_readiness(
    host: str,
    port: int,
    are_ready: Callable[[], Awaitable[Sequence[bool]]],
    stop: trio.Event,
    *,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stop`: 200 while all that `are_ready` tells of are, and 503 otherwise.

    Raises ConfigError if it cannot listen.
    """
    app = new_app(__name__)

    async def show_ready() -> Response:
        ready = await are_ready()
        return json_response({"ready": list(ready)}, 200 if all(ready) else 503)

    for path in ("/health", "/ready", "/readyz"):
        app.add_url_rule(path, path, show_ready)
    await serve_http(app, host=host, port=port, shutdown=stop.wait, task_status=task_status)
