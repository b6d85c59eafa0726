"""The fields that both routes share, and the one way from bytes to a checked body.

Law: input is refused, never repaired. Types are strict, null means absent, and the first thing
wrong is named by its field with what would be allowed.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, model_validator

from actors.api.errors import ApiError, invalid, shown
from actors.core.sampling import Sampling

MAX_STOPS = 64
INT64_MAX = 2**63 - 1


class Lenient(BaseModel):
    """An object as clients send it: null fields are absent, unknown ones are kept aside."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: object) -> object:
        if isinstance(value, dict):
            return {key: each for key, each in value.items() if each is not None}
        return value


def as_stops(value: object) -> tuple[str, ...]:
    """`stop`, a string or a list of strings, as a tuple; raises ValueError."""
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(each, str) for each in stops):
        raise ValueError("must be a string or a list of strings")
    if not all(stops):
        raise ValueError("must not contain the empty string")
    if len(stops) > MAX_STOPS:
        raise ValueError(f"has {len(stops)} strings; at most {MAX_STOPS} are allowed")
    return tuple(stops)


UsageWanted = Literal["never", "last", "always"]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
Priority = Annotated[int, Field(ge=-INT64_MAX, le=INT64_MAX)]


class StreamOptions(Lenient):
    """What a stream tells about usage."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationBody(Lenient):
    """What completions and chat completions have in common; defaults are vLLM's."""

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = 0
    seed: Annotated[int, Field(ge=-INT64_MAX - 1, le=INT64_MAX)] | None = None
    stop: Annotated[tuple[str, ...], PlainValidator(as_stops)] = ()
    stop_token_ids: list[TokenId] = []
    ignore_eos: bool = False
    priority: Priority = 0
    cache_salt: Annotated[str, Field(min_length=1)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None

    def sampling(self, max_tokens: int | None) -> Sampling:
        """The sampling parameters, with the route's own idea of `max_tokens`; raises 400."""
        if max_tokens is not None and self.min_tokens > max_tokens:
            raise invalid(
                f"min_tokens is {self.min_tokens}: it must not exceed max_tokens ({max_tokens}).",
                "min_tokens",
            )
        return Sampling(
            temperature=self.temperature,
            top_k=self.top_k if self.top_k > 0 else None,
            top_p=self.top_p,
            seed=self.seed,
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            stop=self.stop,
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
        )

    def usage_wanted(self) -> UsageWanted:
        """Which chunks of a stream carry usage; raises 400 for options without a stream."""
        if self.stream_options is None:
            return "never"
        if not self.stream:
            raise invalid("stream_options is only allowed when stream is true.", "stream_options")
        if not self.stream_options.include_usage:
            return "never"
        return "always" if self.stream_options.continuous_usage_stats else "last"


BodyT = TypeVar("BodyT", bound=Lenient)


def parse(body_type: type[BodyT], data: bytes) -> BodyT:
    """The body that `data` spells; raises 400 naming the first field that is wrong."""
    try:
        return body_type.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _as_api_error(first) from None


def _as_api_error(error: Mapping[str, object]) -> ApiError:
    location, message = error["loc"], str(error["msg"])
    assert isinstance(location, tuple)
    if error["type"] == "json_invalid":
        return invalid(f"The body is not valid JSON: {message.removeprefix('Invalid JSON: ')}.", None)
    if not location:
        return invalid("The body must be a JSON object.", None)
    param = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in location)[1:]
    if error["type"] == "missing":
        return invalid(f"{param} is required.", param)
    if error["type"] == "value_error":
        # The validators of this package give whole predicates: "must be …".
        return invalid(f"{param} {message.removeprefix('Value error, ')}.", param)
    allowed = message.replace("Input should", "it should")
    return invalid(f"{param} is {shown(error['input'])}: {allowed}.", param)
