"""Parsing of a request's bytes into a checked body, and the types of its fields.

Law: input is refused, never repaired. Anything but strict JSON is refused as a whole (NaN, a key given twice,
half a surrogate pair, 200 levels of nesting). Types are strict, null means absent, and an error names the
first wrong field and its allowed values. Every number in a body has bounds and every list a longest length,
so that no code behind the API meets a number that does not fit a register or a float32. The bounds exceed
what any model needs; narrower ones are checked later.

Parsing holds the interpreter's lock, even in a thread, and takes time by the number of values rather than
bytes: 16 MB are one text in 20 ms, or a million keys in 1,500. So values are counted before a body is parsed.
"""

import codecs
import gc
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, TypeVar

import jiter
import trio
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from sundog.actors.api.context import ApiContext
from sundog.actors.api.errors import ApiError, shown
from sundog.actors.api.requests import ApiRequest
from sundog.actors.core.params.fields import INT32_MAX, INT64_MAX, INT64_MIN, TEMPERATURE, TOP_K, TOP_P
from sundog.actors.front.bounds import MAX_CHOICES as MAX_CHOICES_OF_PROMPT
from sundog.actors.front.codec import TooManyTokens
from sundog.actors.front.foreign import ForeignFailure, contained

Json = dict[str, Any]


MAX_STOPS = 64
MAX_STOP_CHARACTERS = 1024
MAX_STOP_TOKEN_IDS = 4096
MAX_PROMPTS = 1024
MAX_LOGPROB_TOKEN_IDS = 1024
MAX_PATTERN_TOKENS = 1024
"""Maximum number of tokens in a repetition pattern, which is compared after every token, once per repetition.
"""
MAX_CHOICES = 1024
"""Maximum number of choices in one answer: choices of a prompt times prompts."""
MAX_PROMPT_TOKENS = 2**20
MAX_MESSAGES = 2**14
MAX_PARTS = 2**14


def without_fraction(value: object) -> object:
    """Return a whole number as an integer; anything else unchanged."""
    return int(value) if type(value) is float and value.is_integer() else value


WHOLE = BeforeValidator(without_fraction)
"""Integer type that accepts 16.0: in JSON it is an integer, and YAML's 1e3 becomes 1000.0."""
NumChoices = Annotated[int, Field(ge=1, le=MAX_CHOICES_OF_PROMPT), WHOLE]
TokenId = Annotated[int, Field(ge=0, le=INT32_MAX)]
NumTokens = Annotated[int, Field(ge=0, le=INT32_MAX), WHOLE]
NumTokensFrom1 = Annotated[int, Field(ge=1, le=INT32_MAX), WHOLE]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Int64 = Annotated[int, Field(ge=INT64_MIN, le=INT64_MAX), WHOLE]
Temperature = Annotated[float, Field(**TEMPERATURE.bounds)]
Probability = Annotated[float, Field(**TOP_P.bounds)]
TopK = Annotated[int, Field(**TOP_K.bounds), WHOLE]
Name = Annotated[str, Field(min_length=1, max_length=1024)]
ModelName = Annotated[str, Field(max_length=1024)]
"""Name of a model; empty, as some clients send it, means the served model."""
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
"""Stop string of limited length, since each token is compared with every stop string."""
ManyTokenIds = Annotated[list[TokenId], Field(max_length=MAX_PROMPT_TOKENS, fail_fast=True)]
"""Token ids of which only the first wrong one is reported: a million errors take seconds to format."""
TokenIds = Annotated[ManyTokenIds, Field(min_length=1)]


MANY_MESSAGES = 256
"""Number of turns from which a conversation is converted in a thread; fewer take up to 3 ms."""
THREAD_FROM_BYTES = 2**17
"""Size in bytes from which a body is parsed in a thread; a smaller one takes up to 2 ms."""
MAX_COMPOUND = 2**17
"""Maximum number of texts, keys, arrays and objects in a body: each takes about 0.5 µs, a number a tenth of
that.
"""
MAX_VALUES = 2**20 + 2**10
"""Maximum number of values in a body: a prompt of 2**20 token ids, and the other fields."""
MAX_FIELDS = 1000
ABOUT_BOUNDS = ("greater_than", "less_than", "too_short", "too_long", "string_too")
"""Beginnings of pydantic's error types for values out of bounds; vLLM reports these errors differently."""
KINDS = ("str", "int", "float", "bool", "dict")
"""Names that pydantic gives the branches of a union in an error's location; lists have brackets."""
OF_JSON = {
    "a valid dictionary": "an object",
    "a valid list": "a valid array",
    "a valid tuple": "a valid array",
}
"""JSON's names for types that pydantic reports by their names in Python."""
SUBJECT = re.compile(r"^\w+ should")  # Input, String, List
BodyT = TypeVar("BodyT", bound="JsonObject")
T = TypeVar("T")


class JsonObject(BaseModel):
    """JSON object from a client: null fields are absent, unknown ones are kept separately."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, allow_inf_nan=False)
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    """Further fields that are refused unless they have one of these values."""
    harmless: ClassVar[frozenset[str]] = frozenset()
    """Further fields that have no effect here."""
    elsewhere: ClassVar[frozenset[str]] = frozenset()
    """Further fields that only another vendor's server honours: they are left out, and named."""
    passed: ClassVar[frozenset[str]] = frozenset()
    """Further fields to pass on to the equivalent chat completion."""

    def passed_on(self) -> Json:
        """Return the further fields of a chat completion."""
        return {name: value for name, value in (self.model_extra or {}).items() if name in self.passed}

    def left_out(self) -> Iterator[str]:
        """Yield the names of parts that only another vendor's server honours and that are ignored."""
        for name in sorted(self.elsewhere):
            if (self.model_extra or {}).get(name):
                yield name

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: object) -> object:
        if isinstance(value, dict):
            if len(value) > MAX_FIELDS:
                raise ValueError(f"has {len(value)} fields; at most {MAX_FIELDS} are allowed")
            return {key: each for key, each in value.items() if each is not None}
        return value


async def parse_request(body_type: type[BodyT], request: ApiRequest, context: ApiContext) -> BodyT:
    """Return the request's checked body; raises 415 for types other than JSON, 413, and 400."""
    check_content_type(request.headers.get("Content-Type"), request.headers.get("Content-Encoding"))
    data = await request.read_body()

    def work() -> BodyT:
        try:
            return contained(lambda: validate(body_type, parse(data)))
        except ForeignFailure as panic:
            raise ApiError(400, f"The body cannot be read: {panic}.", is_malformed=True) from panic

    return await off_the_loop(context, work, is_large=len(data) >= THREAD_FROM_BYTES)


async def off_the_loop(context: ApiContext, work: Callable[[], T], *, is_large: bool) -> T:
    """Return the result of `work`, run in a thread if it `is_large` to keep the event loop responsive."""
    if not is_large:
        return work()
    return await in_a_thread(context, partial(_without_collecting, work))


async def in_a_thread(context: ApiContext, work: Callable[[], T]) -> T:
    """Return the result of `work` from a thread, one of the few that may parse large bodies at a time.

    Trio's frames and an error that passes through them form a cycle, which would keep a refused body of 16 MB
    alive until the next collection. So the error is passed as a value, without its frames.
    """
    done: list[T] = []
    refused: Exception | None = await trio.to_thread.run_sync(
        partial(_refusal, work, done), limiter=context.large_bodies, abandon_on_cancel=True
    )
    try:
        if refused is not None:
            raise refused
        return done[0]
    finally:
        del refused, work  # or this frame, which the error holds, would hold the error


def _refusal(work: Callable[[], T], done: list[T]) -> Exception | None:
    """Store the result of `work` in `done`; return the error for the client, if there is one."""
    try:
        done.append(work())
    except (ApiError, TooManyTokens, ValueError) as error:
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)
    return None


def _without_collecting(work: Callable[[], T]) -> T:
    """Run `work` without the garbage collector, which would run often while a million values are made."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return work()
    finally:
        if was_enabled:
            gc.enable()


def check_content_type(content_type: str | None, encoding: str | None) -> None:
    """Raise 415 unless the headers announce plain JSON.

    A web page can make a browser send other types to any host without a preflight; requiring JSON prevents
    that.
    """
    name = (content_type or "").partition(";")[0].strip().lower()
    if name != "application/json" and not (name.startswith("application/") and name.endswith("+json")):
        given = f"is {shown(content_type)}" if content_type else "is missing"
        raise ApiError(415, f"Content-Type {given}: send application/json.", None, "unsupported_media_type")
    if encoding is not None and encoding.strip().lower() not in ("", "identity"):
        message = f"Content-Encoding is {shown(encoding)}: send the body as it is."
        raise ApiError(415, message, None, "unsupported_media_type")


def parse(data: bytes) -> object:
    """Parse JSON, with or without UTF-8's byte order mark; raises 413 and 400."""
    _check_shape(data)
    try:
        value: object = jiter.from_json(
            data.removeprefix(codecs.BOM_UTF8), allow_inf_nan=False, catch_duplicate_keys=True
        )
    except ValueError as error:
        raise _not_json(str(error)) from None
    return value


def _check_shape(data: bytes) -> None:
    r"""Raise 413 for more values than a body may have.

    The first count includes punctuation within texts, and suffices for most bodies. The second excludes
    texts: `{"a\"b": [1, "c,d"]}` is `{"ab": [1, "c,d"]}` without escapes, and every other piece between
    quotes is outside texts: `{`, `: [1, ` and `]}`.
    """
    if len(data) <= MAX_COMPOUND:
        return
    most_compound = data.count(b'"') // 2 + data.count(b"[") + data.count(b"{")
    if most_compound <= MAX_COMPOUND and data.count(b",") < MAX_VALUES:
        return
    data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    num_texts = data.count(b'"') // 2
    if num_texts <= MAX_COMPOUND:
        data = b"".join(data.split(b'"')[::2])
    num_compound = num_texts + data.count(b"[") + data.count(b"{")
    if num_compound > MAX_COMPOUND:
        what = f"{num_compound} texts, keys, arrays and objects; at most {MAX_COMPOUND} are read"
    elif (num_values := data.count(b",") + 1) > MAX_VALUES:
        what = f"{num_values} values; at most {MAX_VALUES} are read"
    else:
        return
    raise ApiError(413, f"The body has {what}: send less at once, or a long prompt as text.")


def validate(body_type: type[BodyT], value: object) -> BodyT:
    """Validate a JSON value as a body; raises 400 that names the first wrong field."""
    try:
        return body_type.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]  # a context has frames
        raise as_api_error(first) from None


def _not_json(message: str) -> ApiError:
    if message.startswith("recursion limit"):
        where = message.partition(" at ")[2]
        message = f"The JSON of the body is nested too deeply, at {where}: at most 201 levels are read."
        return ApiError(400, message, is_malformed=True)
    return ApiError(400, f"The body is not valid JSON: {message[:200]}.", is_malformed=True)


def as_api_error(error: Mapping[str, object]) -> ApiError:
    """Convert an error of pydantic to a 400."""
    location, message = error["loc"], str(error["msg"])
    assert isinstance(location, tuple)
    kind = str(error["type"])
    fields = [key for key in location if isinstance(key, int) or (key not in KINDS and "[" not in key)]
    param = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in fields)[1:] or None
    if kind == "value_error":
        # The validators of this package phrase an error as a predicate: "must be …".
        message = f"{param or 'The body'} {message.removeprefix('Value error, ')}."
    elif param is None:
        message = "The body must be a JSON object."
    elif kind == "missing":
        message = f"{param} is required."
    else:
        for pythons, jsons in OF_JSON.items():
            message = message.replace(pythons, jsons)
        message = f"{param} is {shown(error['input'])}: {SUBJECT.sub('it should', message)}."
    about_value = kind.startswith(ABOUT_BOUNDS) or (kind == "value_error" and " must be " not in message)
    return ApiError(400, message, param, is_malformed=not about_value)
