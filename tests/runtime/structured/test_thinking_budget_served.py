"""`thinking_token_budget` through HTTP: the reasoning ends with its budget, and the answer goes on."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.live import EMULATED, Live, live
from tests.patience import START_S

pytest.importorskip("torch", reason="the engine extra is not installed")

BEGIN, END = 0, 3
PROMPT = [1, 514, 492, 263, 470]
NEVER = {"2": -100, str(END): -100}
"""Of its own the model ends neither its reasoning nor its answer."""
ASKED = {"role": "user", "content": "Hello <think>"}
BEHIND = 2
"""The tokens that the chat template writes behind the message."""


def tokens(server: Live, **fields: Any) -> list[int]:
    """The answer to a prompt that opens reasoning, of a model that never ends any."""
    body = {"prompt": [*PROMPT, BEGIN], "logit_bias": NEVER, "return_token_ids": True, "max_tokens": 14}
    answer = server.complete(**{**body, **fields})
    assert answer.status_code == 200, answer.text
    found: list[int] = answer.json()["choices"][0]["token_ids"]
    return found


def chat(server: Live, **fields: Any) -> dict[str, Any]:
    body = {"messages": [ASKED], "logit_bias": NEVER, "temperature": 0, "max_tokens": 60, **fields}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=START_S)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("budget", [0, 1, 5])
def test_reasoning_ends_with_its_budget_to_the_token(thinker: Live, budget: int) -> None:
    """What comes before is what it would have thought anyway; without a budget it never ends."""
    free = tokens(thinker)
    assert END not in free
    bounded = tokens(thinker, thinking_token_budget=budget)
    assert bounded[: budget + 1] == [*free[:budget], END] and END not in bounded[budget + 1 :]
    assert len(bounded) == len(free)


@pytest.mark.parametrize("unbound", [-1, 14, 10_000])
def test_a_budget_beyond_the_answer_changes_nothing(thinker: Live, unbound: int) -> None:
    """-1 is none."""
    assert tokens(thinker, thinking_token_budget=unbound) == tokens(thinker)


def test_a_prompt_that_opens_no_reasoning_is_not_bound(thinker: Live) -> None:
    """Nor one whose reasoning is over. What the prompt has thought counts, and what the answer opens."""
    for prompt in (PROMPT, [*PROMPT, BEGIN, 470, END]):
        assert tokens(thinker, prompt=prompt, thinking_token_budget=2) == tokens(thinker, prompt=prompt)
    thought = [*PROMPT, BEGIN, 470, 470, 470]
    assert tokens(thinker, prompt=thought, thinking_token_budget=5)[:3].index(END) == 2
    opens = {"logit_bias": {**NEVER, str(BEGIN): 100}, "prompt": PROMPT, "max_tokens": 7}
    assert tokens(thinker, **opens, thinking_token_budget=2) == [BEGIN, BEGIN, BEGIN, END] + [BEGIN] * 3


def test_each_choice_has_the_whole_budget_beside_requests_without(thinker: Live) -> None:
    """All at once, drawn with seeds, on prefixes that are cached by then."""
    drawn = {"temperature": 1.0, "seed": 5, "n": 3, "thinking_token_budget": 4}
    body = {"prompt": [*PROMPT * 9, BEGIN], "logit_bias": NEVER, "return_token_ids": True, "max_tokens": 9}
    with ThreadPoolExecutor(4) as pool:
        free = pool.submit(tokens, thinker)
        asked = [pool.submit(thinker.complete, **body, **drawn) for _ in range(3)]
        answers = [each.result().json()["choices"] for each in asked]
    assert END not in free.result()
    assert answers[0] == answers[1] == answers[2]
    assert all(choice["token_ids"].index(END) == 4 for choice in answers[0])
    assert len({tuple(choice["token_ids"]) for choice in answers[0]}) == 3


def test_the_answer_keeps_to_its_grammar_behind_the_budget(thinker: Live) -> None:
    """From the forced end on."""
    pytest.importorskip("llguidance", reason="the extra for structured output is not installed")
    answer = chat(thinker, thinking_token_budget=BEHIND + 3, structured_outputs={"choice": ["yes", "no"]})
    (choice,) = answer["choices"]
    assert choice["message"]["reasoning"] and choice["message"]["content"] in ("yes", "no")
    assert choice["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}


def test_a_call_that_is_required_follows_the_budget(thinker: Live) -> None:
    pytest.importorskip("llguidance", reason="the extra for structured output is not installed")
    function = {"name": "f", "parameters": {"type": "object", "properties": {"x": {"enum": ["a"]}}}}
    tools = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    answer = chat(thinker, thinking_token_budget=BEHIND + 2, **tools)
    message = answer["choices"][0]["message"]
    assert message["reasoning"] and message["tool_calls"][0]["function"]["name"] == "f"
    auto = chat(thinker, thinking_token_budget=BEHIND + 2, tools=tools["tools"])
    assert auto["choices"][0]["message"]["reasoning"] == message["reasoning"]


def test_a_stop_string_may_end_the_answer_before_the_budget_or_at_it(thinker: Live) -> None:
    """The forced mark is text like any other."""
    free = chat(thinker, thinking_token_budget=BEHIND + 4)["choices"][0]
    word = free["message"]["reasoning"].split()[0]
    early = chat(thinker, thinking_token_budget=BEHIND + 4, stop=[word])["choices"][0]
    assert early["stop_reason"] == word and not early["message"]["content"]
    at_end = chat(thinker, thinking_token_budget=BEHIND + 4, stop=["</think>"])["choices"][0]
    assert at_end["stop_reason"] == "</think>"


def test_a_forced_end_has_the_models_own_log_probability(thinker: Live) -> None:
    """A token that nobody would have chosen: the likeliest ones beside it are others."""
    asked = {"prompt": [*PROMPT, BEGIN], "max_tokens": 4, "thinking_token_budget": 2, "logprobs": 1}
    shown = {"logit_bias": NEVER, "return_tokens_as_token_ids": True}
    found = thinker.complete(**asked, **shown).json()["choices"][0]["logprobs"]  # type: ignore[arg-type]
    assert found["tokens"][2] == f"token_id:{END}"
    likeliest = max(found["top_logprobs"][2].values())
    assert found["token_logprobs"][2] < likeliest <= 0


def test_a_stream_is_cut_where_a_whole_answer_is(thinker: Live) -> None:
    """Reasoning first, then content."""
    whole = chat(thinker, thinking_token_budget=BEHIND + 3)["choices"][0]["message"]
    body = {"messages": [ASKED], "logit_bias": NEVER, "temperature": 0, "max_tokens": 60, "stream": True}
    found = {"reasoning": "", "content": ""}
    url = f"{thinker.url}/v1/chat/completions"
    with httpx.stream("POST", url, json={**body, "thinking_token_budget": BEHIND + 3}) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                delta = json.loads(line[6:])["choices"][0]["delta"]
                for name in found:
                    found[name] += delta.get(name) or ""
    assert found == {name: whole[name] for name in found}


def test_a_message_and_a_response_are_bound_too(thinker: Live) -> None:
    """Anthropic's least budget is 1,024 tokens."""
    body = {"messages": [ASKED], "max_tokens": 1100, "stop_sequences": [" "], "thinking": {"type": "enabled"}}
    body["thinking"]["budget_tokens"] = 1024  # type: ignore[index]
    answer = httpx.post(f"{thinker.url}/v1/messages", json=body, timeout=START_S)
    assert answer.status_code == 200 and answer.json()["stop_reason"] == "stop_sequence"
    bound = {"input": [ASKED], "logit_bias": NEVER, "thinking_token_budget": BEHIND + 3, "temperature": 0}
    made = httpx.post(f"{thinker.url}/v1/responses", json={**bound, "max_output_tokens": 20}, timeout=START_S)
    assert made.json()["usage"]["output_tokens_details"]["reasoning_tokens"] == 3


def test_an_emulated_server_takes_a_budget_and_says_its_words() -> None:
    """Canned answers do not think, so any budget is kept; without a parser it is refused as elsewhere."""
    asked: dict[str, Any] = {"prompt": "Hello", "max_tokens": 5}
    with live(*EMULATED, "--reasoning-parser", "qwen3") as server:
        bounded = server.complete(**asked, thinking_token_budget=0)
        assert bounded.status_code == 200 and bounded.json()["usage"]["completion_tokens"] == 5
        refused = server.complete(**asked, thinking_token_budget=-2)
        assert refused.status_code == 400 and "thinking_token_budget" in refused.text
    with live(*EMULATED) as server:
        assert "--reasoning-parser" in server.complete(**asked, thinking_token_budget=0).text
