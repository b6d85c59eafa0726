"""Generated prompts have the requested length and share the prefixes of the trace."""

import pytest

from sundog.runtime.load.prompts import WORDS, PromptMaker, Units
from sundog.sim.trace.record import TraceRequest

IDS = Units(ids=range(300, 400))


def row(name: str, num_tokens: int, ids: tuple[int, ...] | None = None, size: int = 16) -> TraceRequest:
    return TraceRequest(name, 0.0, num_tokens, 1, hash_ids=ids, hash_block_tokens=size)


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 1000])
def test_a_prompt_of_ids_has_its_length_exactly(num_tokens: int) -> None:
    """And its ids are those of the server's vocabulary."""
    prompt = PromptMaker(IDS, "s").of(row("a", num_tokens))
    assert isinstance(prompt, list) and len(prompt) == num_tokens
    assert set(prompt) <= set(range(300, 400))


def test_equal_names_are_equal_tokens_and_the_rest_is_new() -> None:
    """Whatever is asked first; what no name covers repeats nowhere."""
    prompts = PromptMaker(IDS, "s")
    a, b = prompts.of(row("a", 40, (1, 2))), prompts.of(row("b", 60, (1, 2, 9)))
    assert a[:32] == b[:32]
    assert a[32:] != b[32:40]
    assert prompts.of(row("a", 40, (1, 2))) == a
    assert prompts.of(row("c", 40)) != prompts.of(row("d", 40))


def test_another_salt_is_another_text() -> None:
    """So that what a server has cached of the last load is no help to it."""
    asked = row("a", 40, (1, 2))
    assert PromptMaker(IDS, "s").of(asked) != PromptMaker(IDS, "t").of(asked)


def test_texts_are_as_long_as_the_server_counts() -> None:
    """Two tokens a word and five beside them; shared names are shared words."""
    units = Units(words=WORDS, tokens_each=2.0, fixed_tokens=5)
    prompts = PromptMaker(units, "s")
    a, b = prompts.of(row("a", 69, (1, 2))), prompts.of(row("b", 105, (1, 2)))
    assert isinstance(a, str) and isinstance(b, str)
    assert (len(a.split()), len(b.split())) == (32, 50)
    assert a.split()[:16] == b.split()[:16]


def test_a_prompt_is_never_empty() -> None:
    """Though the chat template alone may be longer than what was asked for."""
    assert PromptMaker(Units(words=WORDS, fixed_tokens=30), "s").of(row("a", 4))
