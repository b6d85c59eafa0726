"""Sampling fields through HTTP on the embedded model, against the library's processors."""

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("torch", reason="the engine extra is not installed")

from transformers import AutoModelForCausalLM, PreTrainedModel

from sundog.actors.core.params.sampling import Sampling
from sundog.actors.front.prompts import spellings
from sundog.runtime.checkpoint.facts import LoadError
from sundog.runtime.serve import EMBEDDED_MODEL, RealModel
from sundog.runtime.text.tokenizer import Tokenizer
from tests.live import Live, live
from tests.runtime.reference import decode

PROMPT = "Once upon a time"
NUM_TOKENS = 16


@pytest.fixture(scope="module")
def served() -> Iterator[Live]:
    command = (
        "sundog",
        "serve",
        "--port",
        "0",
        "--dtype",
        "float32",
        "--debug",
        "--max-num-batched-tokens",
        "8",
    )
    with live(*command) as server:
        yield server


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(EMBEDDED_MODEL, dtype="float32").eval()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(EMBEDDED_MODEL)


def choice(served: Live, **fields: Any) -> dict[str, Any]:
    answer = served.complete(PROMPT, max_tokens=NUM_TOKENS, return_token_ids=True, **fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["choices"][0]
    return found


@pytest.mark.long(
    reason="asks a library for each answer alone; test_sampling_equality.py has the law without a server"
)
def test_requests_at_once_get_what_the_library_gives_each_alone(
    served: Live, model: PreTrainedModel, tokenizer: Tokenizer
) -> None:
    """All fields that bend logits, greedy and drawn, in one batch of chunked prompts."""
    words = ["dog", "Ruby", " cave"]
    ids = {name: tokenizer.encode_plain(name)[0] for name in (" dog", " cave", ",")}
    bodies: list[dict[str, Any]] = [
        {},
        {"repetition_penalty": 1.8},
        {"presence_penalty": 1.5, "frequency_penalty": 0.5},
        {"frequency_penalty": -2.0},
        {"logit_bias": {str(ids[" dog"]): -100, str(ids[" cave"]): 7.5}},
        {"logit_bias": {str(token): -3 for token in range(0, 800, 2)}},
        {"bad_words": words},
        {"allowed_token_ids": list(range(200, 500))},
        {"min_tokens": 12, "stop_token_ids": [ids[","]]},
        {"temperature": 1.1, "seed": 5, "min_p": 0.1},
        {"temperature": 0.9, "seed": 6, "top_p": 0.8, "top_k": 30, "repetition_penalty": 1.3},
    ]
    with ThreadPoolExecutor(len(bodies)) as pool:
        answers = list(pool.map(lambda body: choice(served, **{"temperature": 0} | body), bodies))
    prompt, eos = tokenizer.encode(PROMPT), tokenizer.eos_token_ids[0]
    for body, answer in zip(bodies, answers, strict=True):
        fields = {"temperature": 0.0} | body
        fields["logit_bias"] = tuple((int(key), bias) for key, bias in body.get("logit_bias", {}).items())
        for name in ("allowed_token_ids", "stop_token_ids"):
            if name in body:
                fields[name] = tuple(body[name])
        spelt = spellings(fields.pop("bad_words", ()), tokenizer.encode_plain)
        sampling = Sampling(**fields, bad_words_token_ids=spelt)
        assert answer["token_ids"] == decode(model, prompt, sampling, NUM_TOKENS, eos, ends=True), body
    assert len({answer["text"] for answer in answers}) >= 6


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_bad_words_are_not_in_the_text(served: Live, tokenizer: Tokenizer) -> None:
    """Those whose spelling in the middle of a text is as long as at its beginning, as in vLLM."""
    plain = choice(served)["text"]
    words = [word for word in plain.split() if len(spellings([word], tokenizer.encode_plain)) == 2]
    assert words
    for word in words:
        assert word not in choice(served, bad_words=[word])["text"].split()


def test_a_prompt_that_ends_within_a_character_is_not_said_again(served: Live, tokenizer: Tokenizer) -> None:
    """The answer's text is that of its own tokens, however ids cut the prompt."""
    prompt = tokenizer.encode_plain("Ruby was a good dog. é")[:-1]
    said = tokenizer.encode_plain(" dog")
    fields = {"max_tokens": 3, "logit_bias": {str(said[0]): 100}, "return_token_ids": True}
    answer = served.complete(prompt, **fields).json()["choices"][0]
    assert answer["token_ids"] == said * 3 and answer["text"] == " dog" * 3


def test_a_stop_string_waits_for_min_tokens(served: Live, tokenizer: Tokenizer) -> None:
    """The first that ends after them counts, not the ones before."""
    plain = choice(served)["text"]
    assert choice(served, stop=" ")["text"] == plain[: plain.index(" ")]
    late = choice(served, stop=" ", min_tokens=6)
    assert late["finish_reason"] == "stop" and late["stop_reason"] == " "
    first_six = tokenizer.decode(tokenizer.encode(PROMPT) + late["token_ids"][:6]).removeprefix(PROMPT)
    assert late["text"].startswith(first_six) and late["text"] != plain
    assert late["text"] == plain[: plain.index(" ", len(first_six))]


def test_a_bias_ends_the_answer_at_once_and_a_ban_never_lets_it(served: Live, tokenizer: Tokenizer) -> None:
    eos = str(tokenizer.eos_token_ids[0])
    forced = choice(served, logit_bias={eos: 100}, min_tokens=2)
    assert forced["finish_reason"] == "stop" and len(forced["token_ids"]) == 3
    assert choice(served, logit_bias={eos: -100})["finish_reason"] == "length"


def test_a_request_without_a_token_left_fails_alone(served: Live, tokenizer: Tokenizer) -> None:
    eos = tokenizer.eos_token_ids[0]
    with ThreadPoolExecutor(2) as pool:
        well = pool.submit(choice, served)
        failed = served.complete(PROMPT, max_tokens=8, min_tokens=2, allowed_token_ids=[eos])
    assert failed.status_code == 500 and "ruled out" in failed.json()["error"]["message"]
    assert len(well.result()["token_ids"]) == NUM_TOKENS
    served.assert_sound()


def test_penalties_bend_a_conversation_too(served: Live) -> None:
    def say(**fields: Any) -> str:
        body = {
            "messages": [{"role": "user", "content": "Tell me a story"}],
            "max_tokens": 40,
            "temperature": 0,
        }
        answer = httpx.post(f"{served.url}/v1/chat/completions", json=body | fields, timeout=120)
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["choices"][0]["message"]["content"]
        return text

    assert say() == say(presence_penalty=0, logit_bias={}, bad_words=[], min_p=0)
    assert say() not in (say(repetition_penalty=2.0), say(frequency_penalty=2.0))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repetition_penalty", 0),
        ("repetition_penalty", -1.5),
        ("repetition_penalty", 1e300),
        ("presence_penalty", 2.01),
        ("frequency_penalty", -3),
        ("min_p", 1.5),
        ("min_tokens", 17),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [1536]),
        ("logit_bias", {"1536": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"word": 1}),
        ("bad_words", [""]),
        ("bad_words", [" "]),
        ("stop_token_ids", [1536]),
        ("logprobs", 21),
        ("prompt_logprobs", 21),
        ("prompt_logprobs", -1),
    ],
)
def test_what_cannot_be_used_is_a_400_that_names_its_field(served: Live, name: str, value: object) -> None:
    answer = served.complete(PROMPT, max_tokens=16, **{name: value})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == name and name in error["message"], error


def test_the_model_s_own_defaults_hold_where_a_request_is_silent(served: Live, tmp_path: Path) -> None:
    """Those of its generation_config.json, unless the server is told to be neutral; a remark names them."""
    folder = tmp_path / "model"
    shutil.copytree(EMBEDDED_MODEL, folder)
    asks = {"temperature": 0.0, "repetition_penalty": 1.8, "top_k": 5, "eos_token_id": 2, "max_new_tokens": 3}
    (folder / "generation_config.json").write_text(json.dumps(asks), encoding="utf-8")
    body = {"prompt": PROMPT, "max_tokens": NUM_TOKENS}
    with live("sundog", "serve", str(folder), "--port", "0", "--dtype", "float32") as server:
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=120).json()
        chat = {"messages": [{"role": "user", "content": PROMPT}], "ignore_eos": True}
        silent = httpx.post(f"{server.url}/v1/chat/completions", json=chat, timeout=120).json()
        says = httpx.post(
            f"{server.url}/v1/chat/completions", json=chat | {"max_tokens": 5}, timeout=120
        ).json()
    assert [each["usage"]["completion_tokens"] for each in (silent, says)] == [3, 5]
    assert answer["choices"][0]["text"] == choice(served, repetition_penalty=1.8)["text"]
    assert any("repetition_penalty 1.8" in line for line in server.said)


def test_defaults_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    shutil.copytree(EMBEDDED_MODEL, tmp_path / "model")
    (tmp_path / "model" / "generation_config.json").write_text('{"top_p": 1.5}', encoding="utf-8")
    with pytest.raises(LoadError, match=r"generation_config\.json: top_p is 1\.5"):
        RealModel.open(str(tmp_path / "model")).sampling_defaults()
