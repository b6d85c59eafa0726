"""GET /metrics: what Prometheus scrapes; no key is needed."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from quart import Blueprint, Response, request

from actors.api.context import ApiContext
from actors.api.edge.response import text_response


def metrics_routes(registry: CollectorRegistry) -> Callable[[ApiContext], Blueprint]:
    """The route that writes down what `registry` collects."""

    def routes_of(context: ApiContext) -> Blueprint:
        routes = Blueprint("metrics", __name__)

        @routes.get("/metrics")
        async def show_metrics() -> Response:
            encode, content_type = choose_encoder(request.headers.get("Accept", ""))
            return text_response(encode(registry), content_type)

        return routes

    return routes_of
