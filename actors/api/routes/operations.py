"""GET /health and /version: for operators and load balancers; no key is needed."""

from importlib.metadata import PackageNotFoundError, version

from quart import Blueprint

from actors.api.context import ApiContext


def operations_routes(context: ApiContext) -> Blueprint:
    """The routes that tell how the server is, and what it is."""
    routes = Blueprint("operations", __name__)

    @routes.get("/health")
    async def show_health() -> dict[str, object]:
        return {"status": "ok"}

    @routes.get("/version")
    async def show_version() -> dict[str, object]:
        return {"version": _version()}

    return routes


def _version() -> str:
    try:
        return version("sundog")
    except PackageNotFoundError:
        return "unknown"
