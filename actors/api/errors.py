"""Errors as {"error": {message, type, param, code}}, in vLLM's or OpenAI's form.

In vLLM `code` is the status and `type` the name of an exception; in OpenAI's both are words.

Law: a mistake of the caller is an `ApiError` with a 4xx status; any other exception is a bug: its traceback
is logged, and the client gets a 500 without internals.
"""

import json
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus

from quart import Quart, Response, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound

from sundog.actors.api.responses import json_response
from sundog.actors.core.logged import MOST_LOGGED, logged
from sundog.actors.kernel.actor import ActorDied
from sundog.actors.messages import Refused

log = logging.getLogger("sundog.api")

SHOWN_CHARACTERS = 60
UNKNOWN_URL = "unknown_url"
UNKNOWN_METHOD = "method_not_allowed"
INVALID_INPUT = "invalid_user_input"
NO_RESPONSE = "not_found"
JSON = json.JSONEncoder(ensure_ascii=False)
BROKEN = "The server could not finish this request; its log says why."


@dataclass(slots=True)
class ApiError(Exception):
    """Error answer to a request; `code` is the error's code in OpenAI's form."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    is_malformed: bool = False
    """Whether the body has the wrong shape: a field is missing, or has the wrong type."""


NAMED_BY_CODE = {INVALID_INPUT: "InvalidUserInput", NO_RESPONSE: "invalid_request_error"}
"""vLLM's `type` for codes that do not follow from the status."""
ErrorShape = Callable[[ApiError], dict[str, object]]
"""Function from an error to the JSON object for the client."""

EXCEPTIONS = {
    400: "BadRequestError",
    404: "NotFoundError",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
}
"""vLLM's `type` by status; others have HTTP's own phrase."""


def as_vllm(error: ApiError) -> dict[str, object]:
    """Return vLLM's form: `code` is the status; unknown URLs, methods and missing keys have HTTP's phrase.

    A malformed body has the phrase, too, and `param` is the path of the field: body.messages.0.role.
    """
    if error.status == 401:
        return {"error": "Unauthorized"}
    phrase = HTTPStatus(error.status).phrase
    if error.code in (UNKNOWN_URL, UNKNOWN_METHOD):
        return {"detail": phrase}
    kind = phrase if error.is_malformed else EXCEPTIONS.get(error.status, phrase)
    kind = NAMED_BY_CODE.get(error.code or "", kind)
    param = _place(error.param) if error.is_malformed else error.param
    return {"error": {"message": error.message, "type": kind, "param": param, "code": error.status}}


def _place(param: str | None) -> str:
    return "body" if param is None else "body." + param.replace("[", ".").replace("]", "")


def as_openai(error: ApiError) -> dict[str, object]:
    """Return OpenAI's form: `code` is a word or null."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    if error.status == 429:
        kind = "rate_limit_error"
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def as_anthropic(error: ApiError) -> dict[str, object]:
    """Return the error in Anthropic's form, for the routes of its API."""
    kind = ANTHROPIC.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


ANTHROPIC = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
SHAPES: dict[str, ErrorShape] = {"vllm": as_vllm, "openai": as_openai}


def invalid(message: str, param: str | None, code: str | None = None) -> ApiError:
    """Return a 400: the caller must change the request."""
    return ApiError(400, message, param, code)


def shown(value: object) -> str:
    """Return a value from a body as short JSON for a message; a large one is not written out."""
    if isinstance(value, str):
        value = value[: SHOWN_CHARACTERS + 1]
    text = ""
    for piece in JSON.iterencode(value):
        text += piece[: SHOWN_CHARACTERS + 1]
        if len(text) > SHOWN_CHARACTERS:
            return f"{text[:SHOWN_CHARACTERS]}…"
    return text


def refusal(refused: Refused, prompt_field: str) -> ApiError:
    """Convert AsyncLLM's refusal to an error; `prompt_field` is this route's name of the prompt."""
    if refused.kind == "overloaded":
        headers = retry_after(refused.retry_after_s)
        return ApiError(429, refused.reason, param=refused.param, code="rate_limit_exceeded", headers=headers)
    if refused.kind == "unavailable":
        return unavailable(refused.reason, refused.retry_after_s)
    if refused.kind == "failed":
        return ApiError(500, refused.reason, refused.param)
    about_prompt = refused.param in ("prompt", "messages")
    return invalid(refused.reason, prompt_field if about_prompt else refused.param, refused.code)


def unavailable(message: str, retry_after_s: float | None) -> ApiError:
    """Return a 503: no engine is up; `retry_after_s` is None if none ever will be."""
    return ApiError(503, message, param=None, code="engine_unavailable", headers=retry_after(retry_after_s))


def retry_after(seconds: float | None) -> dict[str, str]:
    """Return the Retry-After header, in whole seconds."""
    return {} if seconds is None else {"Retry-After": str(max(1, math.ceil(seconds)))}


def install(app: Quart, spell: ErrorShape) -> None:
    """Make the app answer every error as JSON instead of HTML."""

    async def respond(error: ApiError) -> Response:
        own = as_anthropic if request.path.startswith("/v1/messages") else spell
        return json_response(own(error), error.status, error.headers)

    async def answer_http_error(error: HTTPException) -> Response:
        if isinstance(error, NotFound) and (there := _without_slash(app)) is not None:
            return Response("", 307, {"Location": there})
        return await respond(_of_http(error))

    async def answer_dead_engine(error: ActorDied) -> Response:
        log.error("%s %s found no engine: %s", logged(request.method), logged(request.path), error)
        return await respond(ApiError(503, "The engine has stopped; its log says why."))

    async def answer_bug(error: Exception) -> Response:
        log.error("%s %s failed", logged(request.method), logged(request.path), exc_info=error)
        return await respond(ApiError(500, BROKEN))

    app.register_error_handler(ApiError, respond)
    app.register_error_handler(HTTPException, answer_http_error)
    app.register_error_handler(ActorDied, answer_dead_engine)
    app.register_error_handler(Exception, answer_bug)


def _without_slash(app: Quart) -> str | None:
    path = request.path.rstrip("/")
    if path == request.path or not path.strip("/"):
        return None
    try:
        app.url_map.bind("").match(path, method=request.method)
    except NotFound:
        return None
    except HTTPException:
        pass  # the route has another method, and says so itself
    query = request.query_string.decode("latin-1")
    return f"{path}?{query}" if query else path


def _of_http(error: HTTPException) -> ApiError:
    where = f"{request.method} {request.path}"
    if isinstance(error, NotFound):
        return ApiError(404, f"Unknown URL: {where}", code=UNKNOWN_URL)
    if isinstance(error, MethodNotAllowed):
        allowed = ", ".join(sorted(error.valid_methods or ()))
        message = f"Method not allowed: {where}; allowed: {allowed}"
        return ApiError(405, message, param=None, code=UNKNOWN_METHOD, headers={"Allow": allowed})
    return ApiError(error.code or 500, f"{error.name}: {where}")


requests_log = logging.getLogger("sundog.requests")


def log_refusals(app: Quart) -> None:
    """Log the client and status of each refusal; not the reason, which may quote a prompt."""

    async def note(response: Response) -> Response:
        if request.method == "POST" and response.status_code >= 400:
            name = response.headers.get("X-Request-Id") or request.headers.get("X-Request-Id")
            fields: dict[str, object] = {
                "request_id": None if name is None else name[:MOST_LOGGED],
                "path": request.path[:MOST_LOGGED],
                "status": response.status_code,
                "finish_reason": "refused",
            }
            shown = logged(name or "-"), logged(request.path), response.status_code
            requests_log.info("%s: POST %s: refused with %d", *shown, extra={"fields": fields})
        return response

    app.after_request(note)
