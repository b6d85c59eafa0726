"""The Quart app: routes, and what happens around every request."""

import uuid
from collections.abc import Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version

import trio
from quart import Response, request
from quart_trio import QuartTrio
from werkzeug.exceptions import RequestEntityTooLarge

from actors.api import errors
from actors.api.auth import check_key
from actors.api.chat import chat_routes
from actors.api.completions import completions_routes
from actors.api.edge.connection import ApiConnection, ApiRequest, NoWebsocket, current_request
from actors.api.models import models_routes
from actors.api.service import LLM, ServedModel, Service

MAX_BODY_BYTES = 64 * 2**20
BODY_TIMEOUT_S = 60.0
LINGER_S = 5.0


class Api(QuartTrio):
    """Quart with requests that know when they end."""

    asgi_http_class = ApiConnection
    asgi_websocket_class = NoWebsocket
    request_class = ApiRequest


def new_id() -> str:
    """The unique part of an id."""
    return uuid.uuid4().hex


def create_app(
    llm: LLM,
    model: ServedModel,
    *,
    api_key: str | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    body_timeout_s: float = BODY_TIMEOUT_S,
) -> QuartTrio:
    """The OpenAI-compatible app in front of `llm`; serve it with `serve_http`.

    With `api_key`, everything under /v1 wants it. A body larger than `max_body_bytes` is answered
    with 413, one that takes longer than `body_timeout_s` to arrive with 408.
    """
    app = Api(__name__, static_folder=None, template_folder=None)
    app.json.sort_keys = False  # type: ignore[attr-defined]  # the default provider has it
    app.config["MAX_CONTENT_LENGTH"] = max_body_bytes
    app.config["BODY_TIMEOUT"] = body_timeout_s
    app.config["RESPONSE_TIMEOUT"] = None  # Quart's 60 s would cut streams without a word
    errors.install(app)
    service = Service(llm, model, new_id)
    app.before_request(_before_every_request(api_key, min(LINGER_S, body_timeout_s)))
    app.after_request(_name_request)
    for routes in (models_routes, completions_routes, chat_routes):
        app.register_blueprint(routes(service))
    _add_operators_routes(app)
    return app


def _before_every_request(api_key: str | None, linger_s: float) -> Callable[[], Awaitable[None]]:
    async def read_body_and_check_key() -> None:
        request = current_request()
        try:
            await request.read_body()
        except RequestEntityTooLarge:
            # Most clients read the answer only after they have sent everything.
            with trio.move_on_after(linger_s):
                await request.body_arrived.wait()
            raise
        if api_key is not None:
            check_key(request, api_key)

    return read_body_and_check_key


async def _name_request(response: Response) -> Response:
    response.headers["X-Request-Id"] = request.headers.get("X-Request-Id") or new_id()
    return response


def _add_operators_routes(app: QuartTrio) -> None:
    @app.get("/health")
    async def health() -> dict[str, object]:
        return {"status": "ok"}

    @app.get("/version")
    async def show_version() -> dict[str, object]:
        return {"version": _version()}


def _version() -> str:
    try:
        return version("sundog")
    except PackageNotFoundError:
        return "unknown"
