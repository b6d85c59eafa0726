"""A prompt is refused by its bytes only if it can never fit."""

import json
import random
from typing import Any

import pytest
from tokenizers import Tokenizer as FastTokenizer

from sundog.actors.front.codec import TooManyTokens
from sundog.runtime.serve import EMBEDDED_MODEL
from sundog.runtime.text.tokenizer import Tokenizer, longest_token_bytes

FILE = json.loads((EMBEDDED_MODEL / "tokenizer.json").read_text(encoding="utf-8"))


def changed(**fields: Any) -> dict[str, Any]:
    return {**FILE, **fields}


def test_no_text_has_fewer_tokens_than_the_bound_says() -> None:
    """Random texts of all kinds, special tokens among them."""
    fast, longest = FastTokenizer.from_str(json.dumps(FILE)), longest_token_bytes(FILE)
    assert longest is not None
    rng = random.Random(0)
    pieces = ["<|assistant|>", "the ", "  ", "é", "日本", "\U0001f31e", "e\u0301", "1", "\n", "Once upon"]
    for _ in range(500):
        text = "".join(rng.choices(pieces, k=rng.randint(1, 30)))
        assert len(fast.encode(text, add_special_tokens=False)) * longest >= len(text.encode())


def test_the_longest_tokens_in_a_row_are_not_refused() -> None:
    """They are as few as the bound says."""
    tokenizer = Tokenizer(EMBEDDED_MODEL)
    text = "<|assistant|>" * 50
    assert len(tokenizer.encode(text, 51)) == 51
    with pytest.raises(TooManyTokens) as caught:
        tokenizer.encode(text, 49)
    assert caught.value.num_tokens == 50
    with pytest.raises(TooManyTokens) as caught:
        tokenizer.encode(text, 50)
    assert caught.value.num_tokens == 51


@pytest.mark.parametrize(
    "fields",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Strip"}]}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed"}},
        {"added_tokens": [{**FILE["added_tokens"][0], "rstrip": True}]},
        {"model": {**FILE["model"], "type": "WordPiece"}},
        {"model": {**FILE["model"], "vocab": {"a": 0}}},
    ],
    ids=["lowercase", "strip", "whitespace", "removed", "rstrip", "wordpiece", "no bytes"],
)
def test_of_a_tokenizer_that_may_drop_text_nothing_is_known(fields: dict[str, Any]) -> None:
    """Then the prompt is tokenised before it is refused."""
    assert longest_token_bytes(changed(**fields)) is None


def test_a_normalizer_that_shortens_loosens_the_bound() -> None:
    """Composed characters are shorter than their parts."""
    plain, composed = longest_token_bytes(FILE), longest_token_bytes(changed(normalizer={"type": "NFC"}))
    assert plain is not None and composed == 3 * plain
