"""Speculative decoding over HTTP with the embedded model, and on the command line."""

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sundog.runtime.serve import EMBEDDED_MODEL
from sundog.sim.emulation.answers import TEXTS
from tests.live import EMULATED, Live, Stream, live
from tests.sundog.test_options import sundog

NGRAM = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 4}'
SERVE = ("sundog", "serve", "--port", "0", "--debug", "--dtype", "float32")
PROMPTS = (
    "one two three four one two three four one two three",
    "Once upon a time there was a cat. Once upon a time there was a dog. Once upon a",
    "A question. ",
)


@pytest.fixture(scope="module")
def plain() -> Iterator[Live]:
    with live(*SERVE) as server:
        yield server


@pytest.fixture(scope="module", params=["ngram", "draft_model"])
def drafting(request: pytest.FixtureRequest) -> Iterator[Live]:
    own = json.dumps({"model": str(EMBEDDED_MODEL), "num_speculative_tokens": 3})
    with live(*SERVE, "--speculative-config", NGRAM if request.param == "ngram" else own) as server:
        yield server


def choice(server: Live, prompt: str, **fields: object) -> dict[str, object]:
    response = server.complete(prompt, **fields)
    assert response.status_code == 200, response.text
    body = response.json()
    for each in body["choices"]:
        # Sums in batches of another size differ in their last digit.
        each["logprobs"] = each["logprobs"] and each["logprobs"]["tokens"]
    return {"choices": body["choices"], "num_tokens": body["usage"]["completion_tokens"]}


FIELDS: tuple[dict[str, object], ...] = (
    {"max_tokens": 60},
    {"max_tokens": 1},
    {"max_tokens": 40, "stop": ["t", "dog"]},
    {"max_tokens": 40, "temperature": 0.8, "seed": 5, "n": 2},
    {"max_tokens": 30, "temperature": 0.9, "top_p": 0.9, "seed": 3, "min_tokens": 20},
    {"max_tokens": 30, "repetition_penalty": 1.3},
    {"max_tokens": 20, "logprobs": 2},
    {"max_tokens": 20, "structured_outputs": {"choice": ["one two three", "four"]}},
)


@pytest.mark.long(keep=1, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.wall_clock
def test_answers_are_those_of_a_server_without_drafts(plain: Live, drafting: Live) -> None:
    """Text, usage, reason of the end and log probabilities, many requests at a time."""
    asked = [(prompt, fields) for prompt in PROMPTS for fields in FIELDS]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda each: choice(drafting, each[0], **each[1]), asked))
    for (prompt, fields), answer in zip(asked, answers, strict=True):
        assert answer == choice(plain, prompt, **fields), (prompt, fields)
    text = plain.complete(PROMPTS[0], max_tokens=50).json()["choices"][0]["text"]
    assert Stream(drafting, prompt=PROMPTS[0], max_tokens=50).text == text
    drafting.until_it_says("tokens a verification, by position")
    drafting.assert_sound()


@pytest.mark.wall_clock
def test_a_client_that_leaves_amid_drafts_ends_its_request(drafting: Live) -> None:
    """The engine falls idle, and its blocks and queues are sound."""
    import httpx

    body = {"prompt": PROMPTS[0], "temperature": 0, "stream": True, "max_tokens": 400, "ignore_eos": True}
    with httpx.stream("POST", f"{drafting.url}/v1/completions", json=body) as response:
        next(response.iter_lines())
    assert drafting.complete(PROMPTS[1], max_tokens=5).status_code == 200
    drafting.assert_sound()


@pytest.mark.wall_clock
def test_an_emulated_server_says_its_texts_with_drafts() -> None:
    """Whole and in order, several tokens a step; what is accepted is logged."""
    rates = '{"method": "ngram", "num_speculative_tokens": 3, "acceptance": 0.7}'
    with live(*EMULATED, "--speculative-config", rates) as drafting:
        for num_tokens in (1, 2, 7, 30):
            answer = drafting.complete("Say it", max_tokens=num_tokens).json()
            text, usage = answer["choices"][0]["text"], answer["usage"]
            assert usage["completion_tokens"] == num_tokens
            assert any(whole.startswith(text) for whole in TEXTS), text
        drafting.until_it_says("tokens a verification, by position")
        drafting.assert_sound()


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("config", "why"),
    [
        ('{"method": "ngram", "num_speculative_tokens": 0}', "num_speculative_tokens is 0"),
        ('{"method": "ngram", "num_speculative_tokens": -1}', "num_speculative_tokens is -1"),
        ('{"method": "ngram", "num_speculative_tokens": 1000}', "a whole number from 1 to 128"),
        ('{"method": "ngram", "num_speculative_tokens": true}', "num_speculative_tokens is true"),
        ('{"method": "ngram"}', "lacks num_speculative_tokens"),
        ('{"method": "eagle", "num_speculative_tokens": 2}', "one of ngram, draft_model"),
        ('{"num_speculative_tokens": 2}', "method is null"),
        ('{"method": "ngram", "num_spec_tokens": 2}', "Did you mean num_speculative_tokens?"),
        (
            '{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 0}',
            "prompt_lookup_max is 0",
        ),
        (
            '{"method": "ngram", "num_speculative_tokens": 2, "acceptance": 0.5}',
            "acceptance applies to simulated",
        ),
        ('{"method": "draft_model", "num_speculative_tokens": 2}', "a draft model needs one"),
        ('{"model": "NOWHERE", "num_speculative_tokens": 2}', "NOWHERE does not exist"),
        ("ngram", "it is no JSON"),
        ("[" * 20_000, "it is no JSON"),
        ('{"method": "ngram", "method": "ngram"}', "method is given twice"),
        ("[]", "give a JSON object"),
    ],
)
def test_a_config_that_cannot_work_is_refused_in_one_line(config: str, why: str) -> None:
    """By the name of the key."""
    ended = sundog("serve", "--port", "0", "--speculative-config", config)
    assert ended.returncode == 2 and why in ended.stderr, ended.stderr
    assert ended.stderr.startswith("sundog: --speculative-config") and ended.stderr.count("\n") == 1


def test_explain_says_what_became_of_drafts(tmp_path: Path) -> None:
    """Of the run what the replay counted, of its requests their parts; nothing of a run without."""
    trace = tmp_path / "trace.csv"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "0.0,60,40\n" * 2)
    replay, run = ("replay", str(trace), "--num-gpu-blocks", "9000"), str(tmp_path / "run")
    rates = '{"method": "ngram", "num_speculative_tokens": 3, "acceptance": 0.7}'
    assert sundog(*replay, "--speculative-config", rates, "--out", run).returncode == 0
    counted = json.loads((Path(run) / "summary.json").read_text())["speculation"]
    assert json.loads(sundog("explain", run, "--json").stdout)["speculation"] == counted
    assert "Drafts: " in sundog("explain", run).stdout
    parts = [
        json.loads(sundog("explain", run, "--request", f"r000000{number}", "--json").stdout)["speculation"]
        for number in range(2)
    ]
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        assert sum(part[name] for part in parts) == counted[name] > 0
    assert sundog(*replay, "--out", str(tmp_path / "plain")).returncode == 0
    assert "speculation" not in json.loads(sundog("explain", str(tmp_path / "plain"), "--json").stdout)


def test_async_scheduling_beside_drafts_is_refused() -> None:
    ended = sundog("serve", "--port", "0", "--async-scheduling", "--speculative-config", NGRAM)
    assert ended.returncode == 2 and "leave --async-scheduling out" in ended.stderr


def test_a_draft_model_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    """By its size, or by what its tokens stand for."""
    folder = tmp_path / "other"
    shutil.copytree(EMBEDDED_MODEL, folder)
    asked = json.dumps({"model": str(folder), "num_speculative_tokens": 2})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 77}))
    ended = sundog("serve", "--port", "0", "--speculative-config", asked)
    assert ended.returncode == 2 and "has a vocabulary of 77 tokens" in ended.stderr
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    first, second, *_ = vocabulary = tokenizer["model"]["vocab"]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    ended = sundog("serve", "--port", "0", "--speculative-config", asked)
    assert ended.returncode == 2 and "have different tokenizers" in ended.stderr
