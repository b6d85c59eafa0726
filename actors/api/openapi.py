"""OpenAPI document of the server: every route, with the bodies that its handlers check.

The schemas come from the models that parse the bodies, so that the document matches them. An optional field
may be null, which means absent. Unknown fields are ignored; known but unsupported ones are refused by name
(`bodies/extras.py`) and do not appear.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic.json_schema import models_json_schema

from sundog.actors.api.answers.shapes import Json
from sundog.actors.api.bodies.chat import ChatBody, DetokenizeBody, TokenizeBody
from sundog.actors.api.bodies.messages import MessagesBody, PromptBody
from sundog.actors.api.bodies.operators import AbortBody, LoadAdapterBody, UnloadAdapterBody
from sundog.actors.api.bodies.parsing import JsonObject
from sundog.actors.api.bodies.responses import ResponseBody
from sundog.actors.api.bodies.texts import (
    RERANKS,
    SCORES,
    CompletionBody,
    EmbeddingBody,
    RerankBody,
    ScoreBody,
)
from sundog.actors.api.keys import LIVE, needs_key

REF = "#/components/schemas/{model}"
JSON, EVENTS, TEXT = "application/json", "text/event-stream", "text/plain"


@dataclass(frozen=True, slots=True)
class Operation:
    """Method of a path: its summary, input, and content types of its answers."""

    method: str
    path: str
    summary: str
    body: type[JsonObject] | None = None
    answers: tuple[str, ...] = (JSON,)
    parameters: tuple[str, ...] = ()
    query: tuple[tuple[str, Json], ...] = ()
    """Query parameters with their schemas; those without a default are required."""
    is_admin: bool = False
    """Whether it needs the admin key."""

    @property
    def needs_key(self) -> bool:
        return not self.is_admin and needs_key(self.path)


RESETS: tuple[tuple[str, Json], ...] = (
    ("reset_running_requests", {"type": "boolean", "default": False}),
    ("reset_external", {"enum": [False], "default": False}),
)
PAUSES: tuple[tuple[str, Json], ...] = (
    ("mode", {"enum": ["abort", "wait", "keep"], "default": "abort"}),
    ("clear_cache", {"type": "boolean", "default": True}),
)
ENGINE: tuple[tuple[str, Json], ...] = (("engine", {"type": "integer", "minimum": 0, "maximum": 99999}),)
OPERATIONS = (
    Operation(
        "post",
        "/v1/chat/completions",
        summary="Answer a conversation.",
        body=ChatBody,
        answers=(JSON, EVENTS),
    ),
    Operation(
        "post", "/v1/completions", summary="Complete texts.", body=CompletionBody, answers=(JSON, EVENTS)
    ),
    Operation("post", "/v1/embeddings", "Embed texts.", EmbeddingBody),
    *(
        Operation("post", path, "Score the similarity of texts by their vectors.", ScoreBody)
        for path in SCORES
    ),
    *(Operation("post", path, "Rank documents by similarity to a query.", RerankBody) for path in RERANKS),
    Operation(
        "post",
        "/v1/messages",
        summary="Answer a conversation (Anthropic's Messages API).",
        body=MessagesBody,
        answers=(JSON, EVENTS),
    ),
    Operation("post", "/v1/messages/count_tokens", "Count the tokens of a conversation.", PromptBody),
    Operation(
        "post",
        "/v1/responses",
        summary="Answer a conversation (OpenAI's Responses API).",
        body=ResponseBody,
        answers=(JSON, EVENTS),
    ),
    Operation("post", "/v1/responses/input_tokens", "Count the tokens of a response's input.", ResponseBody),
    Operation("get", "/v1/responses/{name}", "A response again.", parameters=("name",)),
    Operation("delete", "/v1/responses/{name}", "Forget a response.", parameters=("name",)),
    Operation("post", "/v1/responses/{name}/cancel", "Cancel a response.", parameters=("name",)),
    Operation("get", "/v1/models", "List the model and its adapters."),
    Operation("get", "/v1/models/{name}", "One of them.", parameters=("name",)),
    Operation(
        "post",
        "/v1/load_lora_adapter",
        summary="Load an adapter, if the server allows it.",
        body=LoadAdapterBody,
        answers=(TEXT,),
    ),
    Operation(
        "post",
        "/v1/unload_lora_adapter",
        summary="Unload an adapter.",
        body=UnloadAdapterBody,
        answers=(TEXT,),
    ),
    Operation("post", "/tokenize", "Tokenize a text or a conversation.", TokenizeBody),
    Operation("post", "/detokenize", "Detokenize token ids.", DetokenizeBody),
    Operation("get", "/tokenizer_info", "The tokenizer's configuration."),
    Operation("get", "/", "Welcome page with links.", answers=(JSON, "text/html")),
    Operation("get", "/health", "Report whether the server accepts requests."),
    Operation("get", "/ping", "Health check for load balancers."),
    Operation("post", "/ping", "Health check for load balancers."),
    Operation("get", "/ready", "Readiness: fails while the server drains."),
    Operation("get", "/readyz", "The same."),
    Operation("get", "/is_sleeping", "Sleep state: always awake."),
    Operation("get", "/load", "Number of unfinished requests."),
    Operation("get", "/metrics", "Metrics for Prometheus.", answers=(TEXT,)),
    Operation("get", "/server_info", "Model, engines and backend of the server."),
    Operation("get", "/version", "The server's version."),
    Operation("post", "/reset_prefix_cache", "Forget cached prefixes.", query=RESETS, is_admin=True),
    Operation("post", "/abort_requests", "End answers.", AbortBody, is_admin=True),
    Operation("post", "/pause", "Pause: queue new requests.", query=PAUSES, is_admin=True),
    Operation("post", "/resume", "Resume after a pause.", is_admin=True),
    Operation("get", "/is_paused", "Report whether the server is paused.", is_admin=True),
    Operation("post", "/drain", "Drain an engine; answers when it is empty.", query=ENGINE, is_admin=True),
    Operation("post", "/undrain", "Undo the drain of an engine.", query=ENGINE, is_admin=True),
    Operation("get", "/openapi.json", "This document."),
    Operation("get", "/dashboard", "The live page.", answers=("text/html",)),
    Operation("get", LIVE, "Events of the live page, twice a second.", answers=(EVENTS,)),
    Operation("get", "/docs", "This document as a page.", answers=("text/html",)),
)
ERRORS = {
    "400": "Invalid request; `param` names the field.",
    "401": "The key is missing or wrong.",
    "403": "The server was started without an admin key, so admin routes are closed.",
    "404": "Unknown model.",
    "408": "The body took too long to arrive.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "429": "Too many requests wait, or the policy refuses this one: retry after `Retry-After` seconds.",
    "500": "This request failed.",
    "503": "No engine is up: retry after `Retry-After` seconds.",
}


def document(version: str, *, has_key: bool) -> Json:
    """Return OpenAPI 3.1 for this server; `has_key` if clients need one."""
    bodies = {operation.body for operation in OPERATIONS if operation.body is not None}
    ordered = sorted(bodies, key=lambda body: body.__name__)
    _, schemas = models_json_schema([(body, "validation") for body in ordered], ref_template=REF)
    schemas = {name: _with_nulls(schema) for name, schema in schemas["$defs"].items()}
    for body in (ResponseBody, MessagesBody, PromptBody):
        of_chats, own = schemas[ChatBody.__name__]["properties"], schemas[body.__name__]["properties"]
        own.update({name: of_chats[name] for name in sorted(body.passed - own.keys())})
    paths: dict[str, Json] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, has_key)
    components: Json = {"schemas": schemas | {"Error": _error(), "AnthropicError": _anthropic_error()}}
    if has_key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    info = {"title": "Sundog", "version": version, "summary": "LLM serving, compatible with OpenAI and vLLM."}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components}


def _operation(operation: Operation, has_key: bool) -> Json:
    key = " Needs the admin key." if operation.is_admin else ""
    responses = dict(_responses(operation, has_key))
    described: Json = {"summary": f"{operation.summary}{key}", "responses": responses}
    in_path: list[Json] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in operation.parameters
    ]
    after_it: list[Json] = [
        {"name": name, "in": "query", "required": "default" not in schema, "schema": schema}
        for name, schema in operation.query
    ]
    if parameters := in_path + after_it:
        described["parameters"] = parameters
    if operation.body is not None:
        schema = {"$ref": REF.format(model=operation.body.__name__)}
        described["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
    if has_key and operation.needs_key:
        described["security"] = [{"key": []}]
    return described


def _responses(operation: Operation, has_key: bool) -> Iterator[tuple[str, Json]]:
    yield "200", {"description": "OK", "content": {kind: {} for kind in operation.answers}}
    shape = "AnthropicError" if operation.path.startswith("/v1/messages") else "Error"
    error = {JSON: {"schema": {"$ref": REF.format(model=shape)}}}
    for status, meaning in ERRORS.items():
        if _may_answer(operation, status, has_key):
            yield (
                status,
                {"description": meaning, "content": {JSON: {}} if status in ("401", "503") else error},
            )


def _may_answer(operation: Operation, status: str, has_key: bool) -> bool:
    if status == "401":
        return operation.is_admin or (has_key and operation.needs_key)
    if status == "403":
        return operation.is_admin
    if status == "400" and operation.query:
        return True
    if status == "404":
        return bool(operation.parameters or operation.body)
    if status in ("429", "500"):
        return EVENTS in operation.answers
    if status == "503":
        return EVENTS in operation.answers or operation.path in ("/health", "/ping", "/ready", "/readyz")
    return operation.body is not None


def _with_nulls(schema: Json) -> Json:
    required, properties = schema.get("required", ()), schema.get("properties", {})
    assert isinstance(properties, dict) and isinstance(required, list | tuple)
    nullable = {name: field if name in required else _or_null(field) for name, field in properties.items()}
    return schema | {"properties": nullable} if properties else schema


def _or_null(field: Json) -> Json:
    kept = {key: field[key] for key in ("default", "description", "title") if key in field}
    kinds = field.get("anyOf", [{key: value for key, value in field.items() if key not in kept}])
    assert isinstance(kinds, list)
    return kept | {"anyOf": [*(kind for kind in kinds if kind != {"type": "null"}), {"type": "null"}]}


def _anthropic_error() -> Json:
    inner = {"type": "object", "required": ["type", "message"]}
    return {"type": "object", "properties": {"error": inner}, "required": ["type", "error"]}


def _error() -> Json:
    text = {"type": ["string", "null"]}
    inner = {"message": {"type": "string"}, "type": {"type": "string"}, "param": text, "code": {}}
    error = {"type": "object", "properties": inner, "required": ["message", "type", "param", "code"]}
    return {"type": "object", "properties": {"error": error}, "required": ["error"]}
