"""The fields that say how a prompt is read and what is shown of the answer."""

from typing import Annotated, Literal

from pydantic import Field

from actors.api.bodies.bounds import INT32_MAX, WHOLE
from actors.api.bodies.parsing import JsonObject
from actors.messages import Reading

UsageWanted = Literal["never", "last", "always"]


class StreamOptions(JsonObject):
    """What a stream says about usage."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class ShownBody(JsonObject):
    """What completions and chat completions have in common of these; defaults are vLLM's."""

    echo: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=INT32_MAX), WHOLE] | None = None
    truncation_side: Literal["left", "right"] = "left"
    stream: bool = False
    stream_options: StreamOptions | None = None

    def reading(self) -> Reading:
        """How the prompt is read."""
        return Reading(
            add_special_tokens=self.add_special_tokens,
            truncate_prompt_tokens=self.truncate_prompt_tokens,
            truncation_side=self.truncation_side,
        )

    def usage_wanted(self) -> UsageWanted:
        """Return which chunks of a stream carry usage; a whole answer always has it."""
        if not self.stream or self.stream_options is None or not self.stream_options.include_usage:
            return "never"
        return "always" if self.stream_options.continuous_usage_stats else "last"
