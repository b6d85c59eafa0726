"""POST /invocations: what SageMaker sends, answered by the route whose body it is, as in vLLM."""

from collections.abc import Awaitable, Callable
from typing import cast

import jiter
from quart import Blueprint, Response, current_app

from actors.api.context import ApiContext
from actors.api.edge.request import current_request
from actors.api.errors import invalid

FIELDS = {
    "messages": "chat.create_chat_completion",
    "prompt": "completions.create_completion",
    "input": "embeddings.create_embeddings",
    "text_1": "scoring.create_score",
    "queries": "scoring.create_score",
    "data_1": "scoring.create_score",
    "query": "scoring.rerank",
}
"""The field that only one route's bodies must have, and that route."""


def invocations_routes(context: ApiContext) -> Blueprint:
    """The route; the others see to the body's type and its errors."""
    routes = Blueprint("invocations", __name__)

    @routes.post("/invocations")
    async def invoke() -> Response:
        view = current_app.view_functions[_route_of(await current_request().read_body())]
        return await cast(Callable[[], Awaitable[Response]], view)()

    return routes


def _route_of(data: bytes) -> str:
    """The name of the route whose body this is; raises 400 for a body of none."""
    try:
        body = jiter.from_json(data)
    except ValueError:
        return FIELDS["messages"]  # which says what is wrong with it
    for field, route in FIELDS.items():
        if isinstance(body, dict) and body.get(field) is not None:
            return route
    raise invalid(f"The body must have one of {', '.join(FIELDS)}.", None)
