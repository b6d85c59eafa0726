"""GET /health, /ping, /load, /server_info, /version, /v1/models and /metrics: for operators and scrapers.

Health is 200 while new requests are accepted, and 503 while every engine is restarting, drained or dead, and
from the first signal to stop on.
"""

from collections.abc import Callable
from dataclasses import asdict

from quart import Blueprint, Response, request

from sundog.actors.api.answers.shapes import Json
from sundog.actors.api.context import ApiContext, ServedModel, server_version
from sundog.actors.api.errors import retry_after
from sundog.actors.api.exposition import Exposition
from sundog.actors.api.in_flight import RETRY_AFTER_S
from sundog.actors.api.responses import json_response, text_response
from sundog.actors.messages import CheckHealth, Health


def operations_routes(context: ApiContext) -> Blueprint:
    """Return the routes that report the server's health and version."""
    routes = Blueprint("operations", __name__)

    @routes.get("/load")
    async def show_load() -> Json:
        load: Json = {"server_load": await context.control.num_under_way()}
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

    @routes.get("/server_info")
    async def show_server() -> Json:
        return _server_info(context.model, await context.llm.ask(CheckHealth()))

    @routes.get("/version")
    async def show_version() -> dict[str, object]:
        return {"version": server_version()}

    return routes


def _server_info(model: ServedModel, health: Health) -> Json:
    info: Json = {"version": server_version(), "model": model.name, "max_model_len": model.max_model_len}
    info["num_engines"] = len(health.replicas)
    if (capacity := health.capacity) is not None:
        info |= {"num_gpu_blocks": capacity.num_blocks, "block_size": capacity.block_size}
        if capacity.computation is not None:
            info |= asdict(capacity.computation)
    return info


def models_routes(context: ApiContext) -> Blueprint:
    """Return the two routes; a name may contain slashes, as on the Hugging Face hub."""
    routes = Blueprint("models", __name__)

    @routes.get("/v1/models")
    async def list_models() -> dict[str, object]:
        return {"object": "list", "data": context.cards}

    @routes.get("/v1/models/<path:name>")
    async def show_model(name: str) -> dict[str, object]:
        return context.model.card(context.check_model(name))

    return routes


def metrics_routes(exposition: Exposition) -> Callable[[ApiContext], Blueprint]:
    """Return the maker of the /metrics route."""

    def routes_of(context: ApiContext) -> Blueprint:
        routes = Blueprint("metrics", __name__)

        @routes.get("/metrics")
        async def show_metrics() -> Response:
            return text_response(*await exposition.scrape(request.headers.get("Accept", "")))

        return routes

    return routes_of
