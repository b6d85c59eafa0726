"""Token ids in the tokenizer but not in the model's embedding are refused, as text and as ids."""

import pytest

from sundog.actors.front.codec import Vocabulary
from sundog.actors.front.prompts import read_prompt
from sundog.actors.messages import ChatMessage, Generate, Refused
from sundog.actors.messages.client import Prompt
from sundog.runtime.serve import EMBEDDED_MODEL
from sundog.runtime.text.tokenizer import Tokenizer

CODEC = Tokenizer(EMBEDDED_MODEL)
TEXT = "once upon a time"
LAST = max(CODEC.encode(TEXT))


@pytest.mark.parametrize("prompt", [TEXT, (ChatMessage("user", TEXT),), (LAST,)], ids=["text", "chat", "ids"])
@pytest.mark.parametrize("num_rows", [LAST, LAST + 1])
def test_an_id_without_a_row_is_refused_by_name(prompt: Prompt, num_rows: int) -> None:
    """A table of embeddings would be read behind its end."""
    asked = Generate(prompt=prompt)
    highest = LAST if isinstance(prompt, str | tuple) and prompt != (ChatMessage("user", TEXT),) else None
    if highest is None:
        highest = max(CODEC.encode_chat([ChatMessage("user", TEXT)]))
        num_rows += highest - LAST
    found = read_prompt(asked, CODEC, Vocabulary(size=num_rows), 100, "the context is full")
    if num_rows > highest:
        assert not isinstance(found, Refused)
    else:
        assert isinstance(found, Refused) and str(highest) in found.reason
        assert f"0 to {num_rows - 1}" in found.reason
