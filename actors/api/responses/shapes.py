"""How each generating route spells its answer; everything else about answering is shared."""

from collections.abc import Callable
from dataclasses import dataclass

from actors.stream import Delta

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class ResponseShape:
    """One route's spelling.

    `whole` puts a text into a choice of a whole answer, `piece` into a choice of a stream's chunk;
    `opening` is the content of the chunk that comes before a choice's first, if there is one.
    `prompt_field` is the field that holds the prompt.
    """

    id_prefix: str
    prompt_field: str
    object: str
    chunk_object: str
    whole: Callable[[str], Json]
    piece: Callable[[str], Json]
    opening: Json | None = None


def choice_object(index: int, content: Json, delta: Delta) -> Json:
    """One entry of `choices`; `stop_reason` is vLLM's: the stop string or token, or null."""
    return {
        "index": index,
        **content,
        "logprobs": None,
        "finish_reason": delta.finish_reason,
        "stop_reason": delta.stop_reason,
    }


COMPLETION = ResponseShape(
    id_prefix="cmpl-",
    prompt_field="prompt",
    object="text_completion",
    chunk_object="text_completion",
    whole=lambda text: {"text": text},
    piece=lambda text: {"text": text},
)

CHAT = ResponseShape(
    id_prefix="chatcmpl-",
    prompt_field="messages",
    object="chat.completion",
    chunk_object="chat.completion.chunk",
    whole=lambda text: {"message": {"role": "assistant", "content": text}},
    piece=lambda text: {"delta": {"content": text}},
    opening={"delta": {"role": "assistant", "content": ""}},
)
