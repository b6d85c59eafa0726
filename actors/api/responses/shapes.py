"""How each generating route spells its answer; everything else about answering is shared.

The keys, and which of them are null, are vLLM's.
"""

from collections.abc import Sequence
from typing import Protocol

from actors.api.responses.view import ChoiceView
from actors.kernel.stream import Delta

Json = dict[str, object]
Whole = Sequence[tuple[ChoiceView, Delta]]
"""All choices of an answer, each as one delta."""


NOTHING: Json = dict.fromkeys(
    ("service_tier", "system_fingerprint", "kv_transfer_params", "ec_transfer_params", "metrics")
)
"""What a whole answer of vLLM has and this server has not."""


class ResponseShape(Protocol):
    """One route's spelling; `prompt_field` is the field that holds the prompt.

    Where it `is_plain`, a chunk shows a delta's text as it is.
    """

    id_prefix: str
    prompt_field: str
    object: str
    chunk_object: str
    is_plain: bool

    def whole(self, choices: Whole) -> Json:
        """What a whole answer holds beside its head and its usage."""
        ...

    def openings(self, views: Sequence[ChoiceView]) -> list[Json]:
        """What the chunks hold that come before all others."""
        ...

    def chunk(self, view: ChoiceView, delta: Delta, is_first: bool) -> Json:
        """One choice's entry in a chunk of a stream."""
        ...

    def chunk_usage(self, usage: Json) -> Json:
        """What a chunk in the middle of a stream shows of its choice's usage."""
        ...


class CompletionShape:
    """Text completions."""

    id_prefix = "cmpl-"
    prompt_field = "prompt"
    object = "text_completion"
    chunk_object = "text_completion"
    is_plain = True

    def whole(self, choices: Whole) -> Json:
        return NOTHING | {"choices": [self._choice(view, delta) for view, delta in choices]}

    def _choice(self, view: ChoiceView, delta: Delta) -> Json:
        beside: Json = {"prompt_logprobs": view.prompt_logprobs(delta), "routed_experts": None}
        return self.chunk(view, delta, is_first=True) | beside

    def openings(self, views: Sequence[ChoiceView]) -> list[Json]:
        return []

    def chunk(self, view: ChoiceView, delta: Delta, is_first: bool) -> Json:
        return {
            "index": view.choice.index,
            "text": view.text(delta, is_first),
            "logprobs": view.completion_logprobs(delta, is_first),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
            "prompt_token_ids": view.prompt_ids if is_first else None,
            "token_ids": view.token_ids(delta),
        }

    def chunk_usage(self, usage: Json) -> Json:
        return {name: value for name, value in usage.items() if value is not None}


class ChatShape:
    """Chat completions; the answer is a message of `role`."""

    id_prefix = "chatcmpl-"
    prompt_field = "messages"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    is_plain = True

    def __init__(self, role: str = "assistant") -> None:
        self._role = role

    def whole(self, choices: Whole) -> Json:
        first_view, first_delta = choices[0]
        return NOTHING | {
            "choices": [self._message(view, delta) for view, delta in choices],
            "prompt_logprobs": first_view.prompt_logprobs(first_delta),
            "prompt_token_ids": first_view.prompt_ids,
            "prompt_text": first_view.prompt_text,
        }

    def _message(self, view: ChoiceView, delta: Delta) -> Json:
        message = {
            "role": self._role,
            "content": view.text(delta, is_first=True),
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        }
        return {
            "index": view.choice.index,
            "message": message,
            "logprobs": view.chat_logprobs(delta),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
            "token_ids": view.token_ids(delta),
            "routed_experts": None,
        }

    def openings(self, views: Sequence[ChoiceView]) -> list[Json]:
        chunks: list[Json] = [
            {
                "choices": [_choice(view, {"role": self._role, "content": ""})],
                "prompt_token_ids": view.prompt_ids,
                "prompt_text": view.prompt_text,
            }
            for view in views
        ]
        return chunks + [
            {"choices": [_choice(view, {"content": echo})]}
            for view in views
            if (echo := view.text(Delta(), is_first=True))
        ]

    def chunk(self, view: ChoiceView, delta: Delta, is_first: bool) -> Json:
        choice = _choice(view, {"content": delta.text}) | {"logprobs": view.chat_logprobs(delta)}
        if delta.finish_reason is not None:
            choice |= {"finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason}
        return choice | {"token_ids": view.token_ids(delta)}

    def chunk_usage(self, usage: Json) -> Json:
        return usage


def _choice(view: ChoiceView, delta: Json) -> Json:
    return {"index": view.choice.index, "delta": delta, "logprobs": None, "finish_reason": None}


COMPLETION = CompletionShape()
