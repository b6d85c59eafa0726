"""An emulated server for users: answers, counts, and its scaled clock."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from sundog.sim.emulation.answers import TEXTS
from tests.live import EMULATED, START_S, Live, Stream, live
from tests.sundog.test_runs import refused, sundog

FAST = ("--time-scale", "20")
TEMPLATE = "{% for message in messages %}<u>{{ message.content }}{% endfor %}<a>"


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer's folder in which each word is a token."""
    folder = tmp_path_factory.mktemp("words")
    own = "<e> <u> <a> hello world good day one two three ! . , ? :".split()
    known = [*own, *{word for text in TEXTS for word in text.split()}]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(known)}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<e>", "<u>", "<a>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<e>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def from_file(words: Path) -> Iterator[Live]:
    """A server that counts words, and answers from a file."""
    answers = words / "answers.jsonl"
    answers.write_text('{"prompt": "hello world", "answer": "good day"}\n\n{"answer": "one two three"}\n')
    with live(*EMULATED, *FAST, "--tokenizer", str(words), "--answers", str(answers)) as server:
        yield server
        assert server.stop() == 0


def chat(server: Live, *said: str) -> Any:
    messages = [{"role": "user", "content": text} for text in said]
    answer = httpx.post(f"{server.url}/v1/chat/completions", json={"messages": messages}, timeout=START_S)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_answers_come_from_a_file_and_tokens_from_a_tokenizer(from_file: Live) -> None:
    """A prompt that is there has its answer, as a text and in a conversation; others have any."""
    known = from_file.complete("hello world", max_tokens=9).json()
    assert (
        known["choices"][0]["text"].strip() == "good day" and known["choices"][0]["finish_reason"] == "stop"
    )
    assert known["usage"]["prompt_tokens"] == 2 and known["usage"]["completion_tokens"] == 3
    spoken = chat(from_file, "hello world")
    assert spoken["choices"][0]["message"]["content"].strip() == "good day"
    assert spoken["usage"]["prompt_tokens"] == 4
    said = [from_file.complete(prompt).json()["choices"][0]["text"] for prompt in ("one", "two", "!")]
    assert {text.strip() for text in said} <= {"good day", "one two three"}


def test_every_token_has_text_however_long_the_answer(from_file: Live) -> None:
    """No stream of empty chunks where the end token is ignored, nor silence up to `min_tokens`."""
    stream = Stream(from_file, prompt="hello world", max_tokens=50, ignore_eos=True)
    chunks = [event["choices"][0] for event in stream.whole()]
    assert all(chunk["text"] for chunk in chunks)
    assert len(stream.text.split()) == 50
    longer = from_file.complete("hello world", max_tokens=50, min_tokens=10).json()
    assert longer["usage"]["completion_tokens"] == 11 and len(longer["choices"][0]["text"].split()) == 10


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_an_echo_says_what_was_said_last() -> None:
    """The prompt of a completion; of a conversation the last message alone."""
    with live(*EMULATED, *FAST, "--answers", "echo") as server:
        assert server.complete("The fox and the owl", max_tokens=60).json()["choices"][0]["text"].strip() == (
            "The fox and the owl"
        )
        told = chat(server, "Once upon a time", "Who are you, little fox?")
        assert told["choices"][0]["message"]["content"].strip() == "Who are you, little fox?"
        assert server.stop() == 0


def test_the_clock_of_a_fast_server_is_its_own(from_file: Live) -> None:
    """/load and /metrics say how fast, how late steps are, and histograms have emulated seconds."""
    from_file.complete("hello world", max_tokens=40, ignore_eos=True)
    lag = httpx.get(f"{from_file.url}/load").json()["emulation"]
    assert lag["time_scale"] == 20 and lag["late_s"] >= 0 and lag["lost_s"] >= 0
    metrics = httpx.get(f"{from_file.url}/metrics").text
    for name in ("late_seconds", "lost_seconds_total", "time_scale"):
        assert f'sundog:emulation_{name}{{engine="0",model_name="qwen3-8b"}}' in metrics


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("options", "words_said"),
    [
        (("--answers", "nowhere.jsonl"), ("cannot read nowhere.jsonl",)),
        (("--answers", "poems"), ("--answers is poems", "texts, echo, or a file")),
        (("--tokenizer", "/nowhere"), ("--tokenizer is /nowhere", "there is no such folder")),
        (("--time-scale", "0"), ("--time-scale is 0", "0.01")),
        (("--time-scale", "1000"), ("--time-scale is 1000", "to 100")),
    ],
)
def test_what_cannot_be_emulated_is_one_line(options: tuple[str, ...], words_said: tuple[str, ...]) -> None:
    refused(sundog("emulate", "--gpu", "h100", "--port", 0, *options), *words_said)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("hello", "is not JSON"),
        ("[1]", "is not an object"),
        ('{"answer": ""}', "answer is ''"),
        ('{"answer": "a", "prompt": 3}', "prompt is 3"),
        ("", "has no answers"),
    ],
)
def test_a_line_that_is_no_answer_is_named(line: str, reason: str, tmp_path: Path) -> None:
    """With its number."""
    file = tmp_path / "answers.jsonl"
    file.write_text(f"{line}\n{line and 'more'}")
    done = sundog("emulate", "--gpu", "h100", "--port", 0, "--answers", file)
    refused(done, reason, "line 1" if line else "answers.jsonl")


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("option", [("--answers", "echo"), ("--time-scale", "2"), ("--tokenizer", "here")])
def test_a_real_model_is_not_emulated(option: tuple[str, ...]) -> None:
    refused(sundog("serve", "--port", 0, *option), f"{option[0]} is an option of `sundog emulate`")
