"""GET /health, /ping, /load and /version: for operators and load balancers; only /load needs the key.

Health is 200 while new requests are taken, and 503 while every engine is restarting, drained or dead, and
from the first signal to stop on.
"""

from quart import Blueprint, Response

from actors.api.context import ApiContext, server_version
from actors.api.edge.response import json_response
from actors.api.errors import retry_after
from actors.api.in_flight import RETRY_AFTER_S
from actors.api.responses.shapes import Json
from actors.messages import CheckHealth


def operations_routes(context: ApiContext) -> Blueprint:
    """The routes that report the server's health and version."""
    routes = Blueprint("operations", __name__)

    @routes.get("/load")
    async def show_load() -> Json:
        load: Json = {"server_load": await context.desk.num_under_way()}
        return load if context.emulation is None else load | {"emulation": context.emulation.lag.to_json()}

    @routes.route("/ping", methods=["GET", "POST"])
    @routes.get("/health")
    async def show_health() -> Response:
        if context.in_flight.is_closed:
            return json_response({"status": "stopping"}, 503, retry_after(RETRY_AFTER_S))
        health = await context.llm.ask(CheckHealth())
        if health.status == "healthy":
            return json_response({"status": "ok"})
        body: Json = {"status": health.status, "replicas": list(health.replicas), "reason": health.reason}
        if health.serves:
            return json_response(body)
        return json_response(body, 503, retry_after(health.retry_after_s))

    @routes.get("/ready")
    @routes.get("/readyz")
    async def show_ready() -> Response:
        health = await context.llm.ask(CheckHealth())
        drains = context.live is not None and context.live.draining.is_set()
        if health.serves and not drains:
            return json_response({"status": "ready"})
        return json_response({"status": "draining" if drains else health.status}, 503)

    @routes.get("/is_sleeping")
    async def show_sleeping() -> Response:
        return json_response({"is_sleeping": False})

    @routes.get("/version")
    async def show_version() -> dict[str, object]:
        return {"version": server_version()}

    return routes
