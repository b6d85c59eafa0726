"""GET /metrics: what Prometheus scrapes; no key is needed."""

from collections.abc import Callable

from quart import Blueprint, Response, request

from actors.api.context import ApiContext
from actors.api.edge.response import text_response
from actors.api.exposition import Exposition


def metrics_routes(exposition: Exposition) -> Callable[[ApiContext], Blueprint]:
    """The route that writes down what is counted."""

    def routes_of(context: ApiContext) -> Blueprint:
        routes = Blueprint("metrics", __name__)

        @routes.get("/metrics")
        async def show_metrics() -> Response:
            return text_response(*await exposition.scrape(request.headers.get("Accept", "")))

        return routes

    return routes_of
