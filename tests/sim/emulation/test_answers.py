"""Answers of an emulated model: complete, in order, despite preemptions, and never empty."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from sundog.actors.config import ConfigError
from sundog.actors.core.batch import Admission, Batch, Chunk
from sundog.actors.core.params.sampling import Sampling
from sundog.actors.messages import ChatMessage
from sundog.sim.backend import TokenSource
from sundog.sim.emulation.answers import Answers, from_file, picked
from sundog.sim.emulation.backends import MadeUpLogprobs
from sundog.sim.emulation.scripts import Scripted, Scripts

TEXTS = ((5, 6, 7), (8, 9))
EOS = 2
ANSWERS = Answers(picked(TEXTS, 1), (40, 41))


def source() -> Scripted:
    return Scripted(Scripts(ANSWERS, EOS))


def admission(name: str, number: int, said: tuple[int, ...] = (), **sampling: object) -> Admission:
    """A request with a prompt of its own; one that has said something resumes."""
    tokens = (number, number, number, *said)
    wants = Sampling(**sampling)  # type: ignore[arg-type]
    return Admission(name, len(tokens), 3, 0, (), tokens, wants, bool(said))


def said_by(tokens: TokenSource, names: tuple[str, ...], preempt_at: int) -> dict[str, list[int]]:
    """Run each request to its end token, preempting all of them once."""
    got: dict[str, list[int]] = {name: [] for name in names}
    admitted = tuple(admission(name, number) for number, name in enumerate(names))
    finished: tuple[str, ...] = ()
    for step in range(1, 12):
        preempted: tuple[str, ...] = ()
        if step == preempt_at:
            preempted = tuple(name for name in names if EOS not in got[name])
            admitted = tuple(admission(name, names.index(name), tuple(got[name])) for name in preempted)
        chunks = tuple(Chunk(a.request_id, a.num_tokens, True) for a in admitted)
        assert tokens.begin(Batch(step, admitted, chunks, preempted=preempted, finished=finished)) == 1
        sampled = tokens.sample(1).tokens or ()
        for name, token in sampled:
            got[name].append(token)
        finished, admitted = tuple(name for name, token in sampled if token == EOS), ()
    return got


@pytest.mark.parametrize("preempt_at", [0, 2, 3])
def test_each_request_says_its_answer_then_the_end(preempt_at: int) -> None:
    """Whatever is preempted, once, in order; and the same prompt has the same answer."""
    names = tuple(f"q{i}" for i in range(8))
    got = said_by(source(), names, preempt_at)
    assert got == said_by(source(), names, 0)
    assert {tuple(answer) for answer in got.values()} == {(*text, EOS) for text in TEXTS}


def test_an_answer_goes_on_where_no_end_is_wanted() -> None:
    """With `ignore_eos` for ever, with `min_tokens` so far."""
    scripts = Scripts(ANSWERS, EOS)
    endless, longer = admission("a", 1, ignore_eos=True), admission("b", 1, min_tokens=6)
    scripts.begin(Batch(1, (endless, longer)))
    text = ANSWERS.choose(endless)
    told = [scripts.token("a", index) for index in range(9)]
    assert told == [*text, *[40, 41] * 4][:9]
    assert [scripts.token("b", index) for index in range(8)] == [*told[:6], EOS, EOS]


def test_an_emulated_model_makes_log_probabilities_up() -> None:
    """For those who ask, of each token and of a prompt once it is computed, also after a preemption."""
    scores_of = MadeUpLogprobs(source(), vocab_size=999)
    prompt, asks = (5, 6, 7), Sampling(logprobs=2, prompt_logprobs=1)
    entering = tuple(
        Admission(name, 3, 3, 0, (), prompt, sampling) for name, sampling in (("a", asks), ("b", Sampling()))
    )
    scores_of.begin(Batch(0, entering, (Chunk("a", 2, False), Chunk("b", 3, True))))
    assert scores_of.sample(1).prompt_logprobs == ()
    scores_of.begin(Batch(1, chunks=(Chunk("a", 1, True),), num_decodes=1))
    sampled = scores_of.sample(1)
    (of_prompt,) = sampled.prompt_logprobs
    assert (of_prompt.request_id, of_prompt.start, [t.token_id for t in of_prompt.tokens]) == ("a", 1, [6, 7])
    ((name, scores),) = sampled.logprobs
    token = dict(sampled.tokens or ())["a"]
    assert (name, scores.token_id, scores.rank) == ("a", token, 1)
    assert scores.top_ids == (token, token + 1)
    assert scores.top_logprobs == pytest.approx((scores.logprob, 2 * scores.logprob))
    back = Admission("a", 4, 3, 0, (), (*prompt, token), asks, True)
    scores_of.begin(Batch(2, (back,), (Chunk("a", 4, True),), preempted=("a",), num_decodes=1))
    again = scores_of.sample(1)
    assert again.prompt_logprobs == () and len(again.logprobs) == 1
    scores_of.begin(Batch(3, finished=("a",), num_decodes=1))
    assert scores_of.sample(1).logprobs == ()


class Letters:
    """A tokenizer of characters, without a chat template."""

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    encode_plain = encode

    def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        raise ValueError("there is no template")

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))


def test_what_stands_last_in_a_conversation_picks_its_answer(tmp_path: Path) -> None:
    """So that an agent is asked, calls, reads the result and ends; other prompts have the other answers."""
    rows = [
        {"last": "list the files", "answer": "call"},
        {"last": "a.txt", "answer": "end"},
        {"prompt": "a.txt, and list the files", "answer": "alone"},
        {"answer": "other"},
    ]
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    answers = from_file(str(file), Letters())

    def said(prompt: str) -> str:
        tokens = tuple(Letters().encode(prompt))
        return Letters().decode(
            answers.choose(Admission("q", len(tokens), len(tokens), 0, (), tokens, Sampling(), False))
        )

    assert said("please list the files now") == "call"
    assert said("please list the files now, call: a.txt b.txt") == "end"
    assert said("a.txt; list the files") == "call"
    assert said("a.txt, and list the files") == "alone"
    assert said("hello") in ("alone", "other")


@pytest.mark.parametrize("last", [3, ""])
def test_a_last_that_is_no_text_is_refused(tmp_path: Path, last: object) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text(json.dumps({"last": last, "answer": "x"}))
    with pytest.raises(ConfigError, match="line 1: last is"):
        from_file(str(file), Letters())
