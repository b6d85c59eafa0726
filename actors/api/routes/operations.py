"""GET /health and /version: for operators and load balancers; no key is needed.

Health is 200 while new requests are taken, and 503 while every engine is restarting or dead.
"""

from importlib.metadata import PackageNotFoundError, version

from quart import Blueprint

from actors.api.context import ApiContext
from actors.api.responses.shapes import Json
from actors.messages import CheckHealth


def operations_routes(context: ApiContext) -> Blueprint:
    """The routes that tell how the server is, and what it is."""
    routes = Blueprint("operations", __name__)

    @routes.get("/health")
    async def show_health() -> tuple[Json, int]:
        health = await context.llm.ask(CheckHealth())
        if health.status == "healthy":
            return {"status": "ok"}, 200
        body: Json = {"status": health.status, "replicas": list(health.replicas), "reason": health.reason}
        return body, 200 if health.serves else 503

    @routes.get("/version")
    async def show_version() -> dict[str, object]:
        return {"version": _version()}

    return routes


def _version() -> str:
    try:
        return version("sundog")
    except PackageNotFoundError:
        return "unknown"
