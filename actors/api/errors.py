"""Every error leaves in OpenAI's shape: {"error": {message, type, param, code}}.

Law: a mistake of the caller is an `ApiError` with a 4xx status; any other exception is a bug: it goes to the
log with its traceback, and the client gets a 500 without internals.
"""

import json
import logging
import math
from dataclasses import dataclass, field

from quart import Quart, Response, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound

from actors.actor import ActorDied
from actors.api.edge.response import json_response
from actors.messages import Refused

log = logging.getLogger("sundog.api")

SHOWN_CHARACTERS = 60
JSON = json.JSONEncoder(ensure_ascii=False)
BROKEN = "The server could not finish this request; its log says why."


@dataclass(slots=True)
class ApiError(Exception):
    """An answer other than 200; `type` defaults to what OpenAI uses for the status."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, object]:
        """The JSON object that the client reads."""
        return {
            "error": {
                "message": self.message,
                "type": error_type(self.status),
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> Response:
        return json_response(self.body, self.status, self.headers)


def error_type(status: int) -> str:
    """OpenAI's `type` for an HTTP status."""
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def invalid(message: str, param: str | None, code: str | None = None) -> ApiError:
    """400: the caller must change the request."""
    return ApiError(400, message, param, code)


def shown(value: object) -> str:
    """A value from a body as JSON, short enough for a message; a large one is not written out."""
    if isinstance(value, str):
        value = value[: SHOWN_CHARACTERS + 1]
    text = ""
    for piece in JSON.iterencode(value):
        text += piece[: SHOWN_CHARACTERS + 1]
        if len(text) > SHOWN_CHARACTERS:
            return f"{text[:SHOWN_CHARACTERS]}…"
    return text


def refusal(refused: Refused, prompt_field: str) -> ApiError:
    """AsyncLLM's refusal as an answer; `prompt_field` is what this route calls the prompt."""
    if refused.kind == "overloaded":
        headers = retry_after(refused.retry_after_s)
        return ApiError(429, refused.reason, refused.param, "rate_limit_exceeded", headers)
    if refused.kind == "unavailable":
        return unavailable(refused.reason, refused.retry_after_s)
    if refused.kind == "failed":
        return ApiError(500, refused.reason, refused.param)
    about_prompt = refused.param in ("prompt", "messages")
    return invalid(refused.reason, prompt_field if about_prompt else refused.param, refused.code)


def unavailable(message: str, retry_after_s: float | None) -> ApiError:
    """503: no engine is up; `retry_after_s` None if none ever will be."""
    return ApiError(503, message, None, "engine_unavailable", retry_after(retry_after_s))


def retry_after(seconds: float | None) -> dict[str, str]:
    """The header that says when to come back, in whole seconds."""
    return {} if seconds is None else {"Retry-After": str(max(1, math.ceil(seconds)))}


def install(app: Quart) -> None:
    """Make the app answer every error in OpenAI's shape instead of HTML."""
    app.register_error_handler(ApiError, _answer_api_error)
    app.register_error_handler(HTTPException, _answer_http_error)
    app.register_error_handler(ActorDied, _answer_dead_engine)
    app.register_error_handler(Exception, _answer_bug)


async def _answer_api_error(error: ApiError) -> Response:
    return error.response()


async def _answer_http_error(error: HTTPException) -> Response:
    status = error.code or 500
    where = f"{request.method} {request.path}"
    if isinstance(error, NotFound):
        return ApiError(404, f"Unknown URL: {where}", code="unknown_url").response()
    if isinstance(error, MethodNotAllowed):
        allowed = ", ".join(sorted(error.valid_methods or ()))
        message = f"Method not allowed: {where}; allowed: {allowed}"
        return ApiError(405, message, None, "method_not_allowed", {"Allow": allowed}).response()
    return ApiError(status, f"{error.name}: {where}").response()


async def _answer_dead_engine(error: ActorDied) -> Response:
    log.error("%s %s found no engine: %s", request.method, request.path, error)
    return ApiError(503, "The engine has stopped; its log says why.").response()


async def _answer_bug(error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.path, exc_info=error)
    return ApiError(500, BROKEN).response()
