"""The bodies of POST /tokenize and /detokenize."""

from typing import Annotated

from pydantic import ConfigDict, Field, JsonValue

from actors.api.bodies.bounds import MAX_PROMPT_TOKENS, ModelName, TokenId
from actors.api.bodies.chat import Messages
from actors.api.bodies.parsing import JsonObject
from actors.api.bodies.templated import Templated
from actors.api.errors import invalid
from actors.messages import Reading

UNSUPPORTED: dict[str, tuple[object, ...]] = {"chat_template": ()}


def _given(name: str, kind: str) -> JsonValue:
    return {"properties": {name: {"type": kind}}, "required": [name]}


class TokenizeBody(Templated):
    """A text or a conversation."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [_given("prompt", "string"), _given("messages", "array")]}
    )
    model: ModelName | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool = False

    def reading(self) -> Reading:
        """How it is read; raises 400 unless it has a prompt or messages."""
        if (self.prompt is None) == (self.messages is None):
            raise invalid("prompt or messages: send one of the two.", "prompt")
        return self.templated(Reading(add_special_tokens=self.add_special_tokens))


class DetokenizeBody(JsonObject):
    """Tokens to be read."""

    model: ModelName | None = None
    tokens: Annotated[list[TokenId], Field(max_length=MAX_PROMPT_TOKENS)]
