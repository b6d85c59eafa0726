"""With a reasoning parser a grammar applies after the end of the reasoning, as in vLLM."""

from typing import Any

import httpx
import pytest

from tests.live import Live

pytest.importorskip("torch", reason="the engine extra is not installed")
pytest.importorskip("llguidance", reason="the extra for structured output is not installed")

from sundog.actors.front.codec import ThoughtMarks

BEGIN, END = 0, 3
PROMPT = [1, 514, 492, 263, 470]
CHOICE = {"choice": ["yes", "no"]}


def tokens(server: Live, prompt: list[int], bias: float, **fields: Any) -> list[int]:
    body = {"prompt": prompt, "logit_bias": {str(END): bias}, "return_token_ids": True, "max_tokens": 12}
    answer = server.complete(**{**body, **fields})
    assert answer.status_code == 200, answer.text
    found: list[int] = answer.json()["choices"][0]["token_ids"]
    return found


def text(server: Live, token_ids: list[int]) -> str:
    body = {"tokens": token_ids}
    shown: str = httpx.post(f"{server.url}/detokenize", json=body).json()["prompt"]
    return shown


@pytest.mark.long(reason="computes many steps of a model", moderate=True)
def test_reasoning_is_free_and_what_follows_keeps_to_the_grammar(thinker: Live) -> None:
    """It ends at once, never, or has ended in the prompt."""
    free = tokens(thinker, PROMPT, -100)
    assert tokens(thinker, PROMPT, -100, structured_outputs=CHOICE) == free
    ended = tokens(thinker, PROMPT, 100, structured_outputs=CHOICE)
    assert ended[0] == END and text(thinker, ended[1:]) in ("yes<|end|>", "no<|end|>")
    for prompt, is_over in (([*PROMPT, END], True), ([*PROMPT, END, BEGIN], False)):
        found = tokens(thinker, prompt, -100, structured_outputs=CHOICE)
        assert (text(thinker, found) in ("yes<|end|>", "no<|end|>")) == is_over


def test_calls_that_are_required_follow_the_reasoning(thinker: Live) -> None:
    """The message has both."""
    function = {"name": "f", "parameters": {"type": "object", "properties": {"x": {"enum": ["a"]}}}}
    body = {
        "messages": [{"role": "user", "content": "Hello"}],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "logit_bias": {str(END): 100},
        "temperature": 0,
        "max_tokens": 60,
        "skip_special_tokens": False,
    }
    answer = httpx.post(f"{thinker.url}/v1/chat/completions", json=body).json()
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "f" and call["function"]["arguments"].lstrip().startswith("{")


def test_marks_that_are_no_tokens_constrain_from_the_start() -> None:
    """As a tokenizer has it that spells them out."""
    assert ThoughtMarks.of(lambda mark: [7, 8]) is None
    marks = ThoughtMarks.of(lambda mark: [8 if "/" in mark else 7])
    assert marks is not None
    assert [marks.awaited(prompt) for prompt in ([], [7], [7, 8], [8, 7])] == [8, 8, None, 8]
