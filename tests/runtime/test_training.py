"""The synthetic grammar is determined by its seed, and the embedded model is small, loads and answers."""

import hashlib
from pathlib import Path
from random import Random

import pytest

from tools.tiny_model import grammar

ASSET = Path(__file__).parents[2] / "runtime" / "assets" / "sundog-tiny"
HELD_OUT_SEED = 7
RELIABLE = ("add", "steps", "word_problem", "lists", "explain", "unknown")


def test_grammar_is_deterministic_in_its_seed() -> None:
    """The same generator state writes the same documents, another one does not."""
    first, again, other = ([grammar.draw_document(rng) for _ in range(50)] for rng in map(Random, (1, 1, 2)))
    assert first == again
    assert first != other


def test_the_text_that_the_embedded_model_learnt_from_stays_what_it_was() -> None:
    """Word for word: whoever trains it again gets the model that is here."""
    text = hashlib.sha256()
    for seed in range(4):
        rng = Random(seed)
        for _ in range(500):
            text.update(repr(grammar.draw_document(rng)).encode())
    assert text.hexdigest() == "1e063bb68c1a60d80cb6e0252b524d922f95a6b4fc97d43733410e90280ba924"


def test_held_out_questions_never_reach_the_training_text() -> None:
    """Whether an example is held out follows from its keys and not from the draw."""
    rng = Random(HELD_OUT_SEED)
    for kind, _ in grammar.KINDS:
        kept = {k for _ in range(40) for k in grammar.draw_example(rng, kind=kind).keys}
        held = grammar.draw_example(rng, held_out=True, kind=kind)
        assert grammar.is_held_out(held)
        assert not kept.issuperset(held.keys)


def test_every_example_ends_with_the_answer_that_it_asks_for() -> None:
    """The assistant speaks last and says all that is needed."""
    rng = Random(HELD_OUT_SEED)
    for kind, _ in grammar.KINDS:
        for _ in range(20):
            example = grammar.draw_example(rng, kind=kind)
            role, answer = example.turns[-1]
            assert role == "assistant"
            assert all(needle in answer for needle in example.needles)


def test_asset_is_complete_and_below_seven_megabytes() -> None:
    """Everything a loader needs is there, in less than 7 MB."""
    names = {path.name for path in ASSET.iterdir()}
    assert names >= {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "README.md",
    }
    assert sum(path.stat().st_size for path in ASSET.iterdir()) < 7_000_000


def test_tokenizer_reads_digits_one_by_one_and_any_text_survives_it() -> None:
    """Numbers are split into digits; encoding and decoding give the text back."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(ASSET / "tokenizer.json"))
    assert tokenizer.encode("125").tokens == ["<|bos|>", "1", "2", "5"]
    for text in ("Tell me a story about a fox.", "17 + 25 = 42.", "Grüße, 太陽 ☀\n\t x"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("dtype_name", ["float32", "bfloat16"])
def test_model_answers_held_out_questions(dtype_name: str) -> None:
    """Greedy answers to questions that the training never saw are right."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tools.tiny_model.evaluate import answers, is_right

    rng = Random(HELD_OUT_SEED)
    kinds = [k for k, _ in grammar.KINDS if k.__name__ in RELIABLE]
    examples = [grammar.draw_example(rng, held_out=True, kind=k) for k in kinds for _ in range(2)]
    said = answers(ASSET, examples, getattr(torch, dtype_name))
    wrong = [(e.turns, a) for e, a in zip(examples, said, strict=True) if not is_right(e, a)]
    assert not wrong
