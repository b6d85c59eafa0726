"""The fields that every generating route shares."""

from typing import Annotated, Literal

from pydantic import Field, PlainValidator

from actors.api.bodies.parsing import JsonObject
from actors.api.errors import invalid
from actors.core.sampling import Sampling

MAX_STOPS = 64
INT64_MAX = 2**63 - 1
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
Priority = Annotated[int, Field(ge=-INT64_MAX, le=INT64_MAX)]
UsageWanted = Literal["never", "last", "always"]


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


class StreamOptions(JsonObject):
    """What a stream tells about usage."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class SamplingBody(JsonObject):
    """What completions and chat completions have in common; defaults are vLLM's."""

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = 0
    seed: Annotated[int, Field(ge=-INT64_MAX - 1, le=INT64_MAX)] | None = None
    stop: Annotated[tuple[str, ...], PlainValidator(as_stops)] = ()
    stop_token_ids: list[TokenId] = Field(default=[])
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
