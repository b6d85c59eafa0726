"""The web app: routes, and the checks around every request, including CORS."""

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from quart import Quart, Response, request
from werkzeug.exceptions import RequestEntityTooLarge, RequestTimeout

from sundog.actors.api import errors
from sundog.actors.api.context import PLAIN_ANSWERS, AnswerFormats, ApiContext, ServedModel
from sundog.actors.api.crowding import BodiesUnderWay
from sundog.actors.api.emulation import Emulation
from sundog.actors.api.errors import ApiError, ErrorShape, as_vllm, unavailable
from sundog.actors.api.exposition import Exposition, OwnExposition
from sundog.actors.api.exposition.http_metrics import count_requests
from sundog.actors.api.in_flight import LLM, RETRY_AFTER_S, AnswerControl, AnswersInFlight
from sundog.actors.api.keys import ApiKeys, check_key
from sundog.actors.api.limits import ConcurrencyLimits, LocalLimits
from sundog.actors.api.live import LiveEvents
from sundog.actors.api.requests import ApiRequest, current_request
from sundog.actors.api.responses import text_response
from sundog.actors.api.routes.admin import admin_routes, lora_routes
from sundog.actors.api.routes.completions import chat_routes, completions_routes
from sundog.actors.api.routes.operations import metrics_routes, models_routes, operations_routes
from sundog.actors.api.routes.pages import dashboard_routes, documents_routes, welcome_routes
from sundog.actors.api.routes.tokenize import tokenize_routes
from sundog.actors.api.routes.translated import messages_routes, responses_routes
from sundog.actors.api.routes.vectors import embeddings_routes, scoring_routes
from sundog.actors.config.http import USUAL_HTTP, HttpSettings
from sundog.actors.front.codec import TextCodec
from sundog.actors.http.quart_app import HttpApp

METHODS = "GET, POST, PUT, DELETE, OPTIONS"
EXPOSED = "X-Request-Id, Retry-After"
MAX_AGE_S = "600"
ANY = "*"


@dataclass(frozen=True, slots=True)
class Cors:
    """Origins whose pages may call; `*` allows all."""

    origins: Sequence[str]

    def install(self, app: Quart) -> None:
        """Answer preflight requests before keys are checked, and add CORS headers to every response."""
        app.before_request(self._answer_preflight)
        app.after_request(self._mark)

    def _allows(self, origin: str) -> bool:
        return ANY in self.origins or origin in self.origins

    async def _answer_preflight(self) -> Response | None:
        asked = request.headers.get("Access-Control-Request-Method")
        origin = request.headers.get("Origin")
        if request.method != "OPTIONS" or asked is None or origin is None:
            return None
        if not self._allows(origin):
            raise ApiError(400, "Pages of this origin may not call this server: see --allowed-origins.")
        answer = text_response(b"", "text/plain")
        answer.headers["Access-Control-Allow-Methods"] = METHODS
        answer.headers["Access-Control-Max-Age"] = MAX_AGE_S
        if fields := request.headers.get("Access-Control-Request-Headers"):
            answer.headers["Access-Control-Allow-Headers"] = fields
        return answer

    async def _mark(self, response: Response) -> Response:
        if (origin := request.headers.get("Origin")) is None:
            return response
        if ANY in self.origins:
            response.headers["Access-Control-Allow-Origin"] = ANY
        else:
            response.headers.add("Vary", "Origin")
            if not self._allows(origin):
                return response
            response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Expose-Headers"] = EXPOSED
        return response


if TYPE_CHECKING:
    from sundog.actors.api.exposition.spans import Spans

MAX_BODY_BYTES = 16 * 2**20
BODY_TIMEOUT_S = 60.0
LINGER_S = 5.0
ROUTES = (
    operations_routes,
    models_routes,
    lora_routes,
    completions_routes,
    chat_routes,
    messages_routes,
    responses_routes,
    tokenize_routes,
    documents_routes,
    embeddings_routes,
    scoring_routes,
    dashboard_routes,
    admin_routes,
    welcome_routes,
)


def new_id() -> str:
    return os.urandom(16).hex()


def create_app(
    llm: LLM,
    model: ServedModel,
    *,
    codec: TextCodec | None = None,
    spell: ErrorShape = as_vllm,
    answers: AnswerFormats = PLAIN_ANSWERS,
    keys: ApiKeys | None = None,
    admin_key: str | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    body_timeout_s: float = BODY_TIMEOUT_S,
    exposition: Exposition | None = None,
    live: LiveEvents | None = None,
    spans: "Spans | None" = None,
    in_flight: AnswersInFlight | None = None,
    emulation: Emulation | None = None,
    http: HttpSettings = USUAL_HTTP,
    control: AnswerControl | None = None,
    limits: ConcurrencyLimits | None = None,
    keeps_responses: bool = True,
    bodies: BodiesUnderWay | None = None,
) -> HttpApp:
    """Return the OpenAI-compatible app in front of `llm`; serve it with `serve_http`.

    `codec` turns tokens into text, `spell` shapes errors. With `keys`, every path under /v1 needs one. A body
    larger than `max_body_bytes` gets 413, one that takes longer than `body_timeout_s` to arrive 408. /metrics
    shows `exposition`, including requests over HTTP; /dashboard shows `live`. Answers are traced as `spans`,
    if given; `in_flight` holds unfinished requests. `http` limits headers and names the allowed origins.
    Operators use `control`; `limits` count the answers of each key, `bodies` the bytes of bodies in progress.
    """
    app = HttpApp(__name__, static_folder=None, template_folder=None)
    app.request_class = partial(ApiRequest, bodies or BodiesUnderWay())  # type: ignore[assignment]
    app.config.update(MAX_CONTENT_LENGTH=max_body_bytes, BODY_TIMEOUT=body_timeout_s)
    app.url_map.merge_slashes = False  # or `//health` is redirected
    app.before_websocket(_turn_down)
    errors.install(app, spell)
    exposition = exposition or OwnExposition(CollectorRegistry())
    count_requests(app, exposition.count)
    if spans is not None:
        spans.install(app)
    app.before_request(_check_head(http.max_headers, http.max_head_bytes, body_timeout_s))
    if http.allowed_origins:
        Cors(http.allowed_origins).install(app)
    if keys is not None:
        app.before_request(_check_key(keys, admin_key, body_timeout_s))
    app.before_request(_read_body(max_body_bytes, body_timeout_s))
    app.after_request(_name_request)
    flying = in_flight or AnswersInFlight(llm)
    context = ApiContext(
        llm,
        model,
        new_id=new_id,
        control=control or flying,
        in_flight=flying,
        codec=codec,
        spell=spell,
        answers=answers,
        has_key=keys is not None,
        admin_key=admin_key,
        live=live,
        emulation=emulation,
        adapters={adapter.name: adapter for adapter in model.adapters},
        keeps_responses=keeps_responses,
        limits=limits or LocalLimits(),
    )
    for routes in (*ROUTES, metrics_routes(exposition)):
        app.register_blueprint(routes(context))
    return app


def _read_body(max_bytes: int, timeout_s: float) -> Callable[[], Awaitable[None]]:
    async def read_body() -> None:
        request = current_request()
        try:
            await request.read_body()
            if request.is_crowded_out:
                await request.drop_body(min(LINGER_S, timeout_s))
                crowded = "Too many large bodies are on their way: send yours again."
                raise unavailable(crowded, RETRY_AFTER_S)
        except RequestEntityTooLarge:
            await request.drop_body(min(LINGER_S, timeout_s))
            raise ApiError(413, f"The body is larger than {max_bytes} bytes: send less at once.") from None
        except RequestTimeout:
            raise ApiError(408, f"The body did not arrive within {timeout_s:g} s: send it faster.") from None

    return read_body


def _check_head(most: int, most_bytes: int, timeout_s: float) -> Callable[[], Awaitable[None]]:
    async def check() -> None:
        request = current_request()
        headers = tuple(request.scope["headers"])
        if len(headers) > most:
            message = f"The request has {len(headers)} headers: send at most {most}."
        # Hypercorn counts only what has come of a head that is not whole.
        elif sum([len(name) + len(value) for name, value in headers]) > most_bytes:
            message = f"The request's headers are longer than {most_bytes} bytes: send less."
        else:
            return
        await request.drop_body(min(LINGER_S, timeout_s))
        raise ApiError(431, message)

    return check


def _check_key(keys: ApiKeys, admin_key: str | None, timeout_s: float) -> Callable[[], Awaitable[None]]:
    async def check() -> None:
        try:
            check_key(current_request(), keys, admin_key)
        except ApiError:
            await current_request().drop_body(min(LINGER_S, timeout_s))
            raise

    return check


async def _turn_down() -> Response:
    return Response(b"", 403)


async def _name_request(response: Response) -> Response:
    response.headers["X-Request-Id"] = request.headers.get("X-Request-Id") or new_id()
    return response
