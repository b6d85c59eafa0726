"""The fields that go to the model's chat template."""

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from actors.api.bodies.bounds import MAX_PARTS
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


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Templated(JsonObject):
    """What bodies with a conversation have in common; defaults are vLLM's."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, object] = Field(default={})
    documents: Annotated[list[dict[str, object]], Field(max_length=MAX_PARTS)] | None = None
    tools: Tools = Field(default=[])
    reasoning_effort: Effort | None = None

    @property
    def may_think(self) -> bool:
        """Whether the template lets the model reason, where it is one that can say."""
        return (self._effort() | self.chat_template_kwargs).get("enable_thinking") is not False

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
        tools = {"tools": for_template(self.tools)} if self.tools else {}
        return replace(
            reading,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            template_arguments={**self._effort(), **self.chat_template_kwargs, **documents, **tools},
        )

    def _effort(self) -> dict[str, object]:
        """The reasoning effort, and for templates that know only that, whether there is to be any."""
        effort = self.reasoning_effort
        return {} if effort is None else {"reasoning_effort": effort, "enable_thinking": effort != "none"}
