"""The fields that go to the model's chat template."""

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from actors.api.bodies.bounds import MAX_PARTS, Name
from actors.api.bodies.parsing import JsonObject
from actors.api.bodies.tools import Tools, for_template
from actors.api.errors import invalid
from actors.messages import Reading

RESERVED = (
    "add_generation_prompt",
    "chat_template",
    "continue_final_message",
    "documents",
    "messages",
    "tokenize",
    "tools",
)
"""Variables of a template that are no argument of its own."""


class Templated(JsonObject):
    """What bodies with a conversation have in common; defaults are vLLM's."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, object] = Field(default={})
    documents: Annotated[list[dict[str, object]], Field(max_length=MAX_PARTS)] | None = None
    tools: Tools = Field(default=[])
    reasoning_effort: Name | None = None

    def templated(self, reading: Reading) -> Reading:
        """`reading` with what the template is given; raises 400 for what it cannot be given."""
        if self.continue_final_message and self.add_generation_prompt:
            raise invalid(
                "continue_final_message does not go with add_generation_prompt: send"
                " add_generation_prompt = false with it.",
                "add_generation_prompt",
            )
        for name in RESERVED:
            if name in self.chat_template_kwargs:
                message = f"chat_template_kwargs.{name} is not allowed: the request's own fields say it."
                raise invalid(message, "chat_template_kwargs")
        documents: dict[str, object] = {} if self.documents is None else {"documents": self.documents}
        effort = {"reasoning_effort": self.reasoning_effort} if self.reasoning_effort else {}
        tools = {"tools": for_template(self.tools)} if self.tools else {}
        return replace(
            reading,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            template_arguments={**effort, **self.chat_template_kwargs, **documents, **tools},
        )
