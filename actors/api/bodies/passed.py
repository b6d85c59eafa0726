"""Fields of chat completions that the other shapes of a conversation take, too, as vLLM's have them.

They are checked where a chat completion's are, and an error names them as it does there.
"""

from collections.abc import Mapping

from actors.api.bodies.terms import TermsBody
from actors.api.json_object import Json

SHARED = frozenset({*TermsBody.model_fields, "chat_template_kwargs"}) - {"model", "kv_transfer_params"}
"""Of every shape: on what terms a request is asked, and what the chat template is given."""

SAMPLED = SHARED | {
    "allowed_token_ids",
    "bad_words",
    "frequency_penalty",
    "ignore_eos",
    "include_reasoning",
    "include_stop_str_in_output",
    "logit_bias",
    "min_p",
    "min_tokens",
    "presence_penalty",
    "repetition_detection",
    "repetition_penalty",
    "seed",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "stop",
    "stop_token_ids",
    "structured_outputs",
    "thinking_token_budget",
    "top_k",
}
"""Of OpenAI's responses: how an answer is sampled and shown, too."""


def passed_on(extras: Mapping[str, object] | None, names: frozenset[str]) -> Json:
    """Those of a body's further fields that are a chat completion's."""
    return {name: value for name, value in (extras or {}).items() if name in names}


def not_passed(extras: Mapping[str, object] | None, names: frozenset[str]) -> Json:
    """The others."""
    return {name: value for name, value in (extras or {}).items() if name not in names}
