"""Matchers in the torch backend: in step with the scheduler, and failures limited to one row."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as FastTokenizer

from sundog.actors.core.params.sampling import Constraint, ConstraintKind, Sampling
from sundog.runtime.serve import EMBEDDED_MODEL, RealModel
from sundog.runtime.structured import grammars as kept
from sundog.runtime.structured import limits
from sundog.runtime.structured.grammars import Grammars
from sundog.runtime.structured.matcher import Matcher
from sundog.runtime.structured.trial import GrammarError, Trial

llguidance = pytest.importorskip("llguidance", reason="the extra for structured output is not installed")

from sundog.runtime.engine.backend import TorchBackend  # noqa: E402  # after the modules it needs
from tests.runtime.driver import Driver  # noqa: E402

TOKENIZER = FastTokenizer.from_file(str(Path(EMBEDDED_MODEL) / "tokenizer.json"))
END = TOKENIZER.token_to_id("<|end|>")
DIGITS = Constraint(ConstraintKind.REGEX, "[0-9]{12}")
DEAD_END = Constraint(ConstraintKind.GRAMMAR, 'start: "a" endless\nendless: endless "b"\n')


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return RealModel.open(None).grammars


def greedy(constraint: Constraint | None, **fields: object) -> Sampling:
    return Sampling(temperature=0.0, constraint=constraint, **fields)  # type: ignore[arg-type]


async def backend(grammars: Grammars | None) -> TorchBackend:
    made = TorchBackend(
        EMBEDDED_MODEL,
        dtype="float32",
        block_size=4,
        num_gpu_blocks=200,
        max_model_len=256,
        eos_token_ids=(END,),
        grammars=grammars,
    )
    await made.load()
    return made


def prompt(text: str) -> list[int]:
    return list(TOKENIZER.encode(text).ids)


@pytest.mark.long(reason="computes many steps of a model", moderate=True)
async def test_preemption_and_prefix_hits_keep_the_place_in_the_grammar(grammars: Grammars) -> None:
    """A request that is recomputed in the middle of its answer says what it would have said."""
    driver = Driver(await backend(grammars))
    driver.submit("whole", prompt("Once upon a time"), greedy(DIGITS))
    expected = (await driver.run(16))["whole"]
    assert TOKENIZER.decode(expected[:12], skip_special_tokens=True).isdigit() and expected[12] == END
    for shares in (False, True):
        driver = Driver(await backend(grammars))
        driver.submit("other", prompt("Once upon a time there"), greedy(None))
        driver.submit("cut", prompt("Once upon a time"), greedy(DIGITS))
        for _ in range(7):
            await driver.step()
        driver.preempt("cut")
        await driver.step()
        driver.admit("cut", sharing="other" if shares else None)
        for _ in range(6):
            await driver.step()
        assert (await driver.run(16))["cut"] == expected


async def test_a_row_whose_grammar_cannot_go_on_fails_alone(grammars: Grammars) -> None:
    """The others' tokens are what they are without it."""
    texts = {"a": "Once upon a time", "b": "The fox ran to the river", "c": "Tell me"}
    alone = Driver(await backend(grammars))
    for name, text in texts.items():
        alone.submit(name, prompt(text), greedy(DIGITS if name == "c" else None))
    expected = await alone.run(10)
    driver = Driver(await backend(grammars))
    driver.submit("bad", prompt("Tell me"), greedy(DEAD_END))
    for name, text in texts.items():
        driver.submit(name, prompt(text), greedy(DIGITS if name == "c" else None))
    found = await driver.run(10)
    assert set(driver.failed) == {"bad"} and "grammar" in driver.failed["bad"]
    assert {name: found[name] for name in texts} == expected


async def test_an_engine_without_grammars_fails_the_request_alone() -> None:
    driver = Driver(await backend(None))
    driver.submit("bad", prompt("Tell me"), greedy(DIGITS))
    driver.submit("good", prompt("Tell me"), greedy(None))
    assert len((await driver.run(5))["good"]) == 5
    assert "does not support grammars" in driver.failed["bad"]


async def test_a_complete_answer_may_end_before_min_tokens_and_after_it_only_ends_follow(
    grammars: Grammars,
) -> None:
    driver = Driver(await backend(grammars))
    driver.submit("early", prompt("Tell me"), greedy(DIGITS, min_tokens=40))
    tokens = (await driver.run(20))["early"]
    assert not driver.failed and tokens[12:] == [END] * len(tokens[12:])


def allowed(matcher: Matcher) -> set[int]:
    word_W = np.zeros(matcher.num_words, np.int32)
    matcher.fill(word_W)
    bits = np.unpackbits(word_W.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def test_every_end_is_allowed_where_the_answer_may_end_and_nowhere_else(grammars: Grammars) -> None:
    """Stop tokens, too; when nothing else may follow, nothing else is allowed."""
    constraint = Constraint(ConstraintKind.REGEX, "aa?")
    grammars.check(constraint)
    matcher = Matcher(grammars, constraint, (END, 31, 10**6), ())
    (a,) = TOKENIZER.encode("a", add_special_tokens=False).ids
    first = allowed(matcher)
    assert a in first and not first & {END, 31}
    matcher.accept(a)
    assert {END, 31, a} <= allowed(matcher) and not matcher.is_complete
    matcher.accept(a)
    assert matcher.is_complete and allowed(matcher) == {END, 31}
    matcher.accept(END)
    matcher.accept(7)
    assert matcher.failed is None and allowed(matcher) == {END, 31}


def test_kept_grammars_are_bounded_and_the_longest_unused_goes_first() -> None:
    model = RealModel.open(None).grammars
    many = [Constraint(ConstraintKind.CHOICE, json.dumps([f"c{i}"])) for i in range(kept.MOST_GRAMMARS + 5)]
    for index, each in enumerate(many):
        model.check(each)
        if index < kept.MOST_GRAMMARS:
            model.check(many[0])
    assert model.knows(many[0]) and model.knows(many[-1]) and not model.knows(many[1])


def test_kept_grammars_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these takes 3.5 MB compiled, by `mallinfo2`, and 40 characters as text."""
    monkeypatch.setattr(limits, "MOST_KEPT_BYTES", 2**23)
    model = RealModel.open(None).grammars
    large = [
        Constraint(ConstraintKind.JSON, f'{{"type":"integer","multipleOf":{10_007 + i}}}') for i in range(6)
    ]
    for each in large:
        model.check(each)
    assert 1 <= sum(map(model.knows, large)) <= 4 and model.knows(large[-1])


@pytest.mark.long(reason="computes many steps of a model", moderate=True)
def test_a_small_schema_that_takes_seconds_and_much_memory_is_refused_and_the_next_goes_on() -> None:
    """40 bytes of schema: 9 s of CPU and 270 MB compiled, though it is valid at once."""
    model = RealModel.open(None).grammars
    with pytest.raises(GrammarError, match="to compile|too deep or too large|at most"):
        model.check(Constraint(ConstraintKind.JSON, '{"type":"integer","multipleOf":1000003}'))
    model.check(DIGITS)


def test_a_grammar_that_is_being_tried_holds_nobody_up_at_the_end() -> None:
    """A process whose main thread ends does not wait for the compiler's thread."""
    code = (
        "import threading, time\n"
        "from sundog.runtime.structured.grammars import _with_deep_stack\n"
        "work = lambda: time.sleep(60)\n"
        "threading.Thread(target=_with_deep_stack, args=(work, 2**20), daemon=True).start()\n"
        "time.sleep(0.2)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=30, check=False)
    assert done.returncode == 0


def test_threads_that_check_one_grammar_compile_it_once_each_at_most() -> None:
    model = RealModel.open(None).grammars
    threads = [threading.Thread(target=model.check, args=(DIGITS,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert model.knows(DIGITS) and allowed(Matcher(model, DIGITS, (END,), ()))


def test_a_chain_of_references_compiles_or_is_refused_and_kills_nothing() -> None:
    """Deeper than a thread's usual stack: 1,000 overflow 8 MiB."""
    model = RealModel.open(None).grammars
    for length in (1_300, 2_500):
        node = {"type": "object", "required": ["x"]}
        definitions = {
            f"d{i}": {**node, "properties": {"x": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(length)
        }
        schema = {"$ref": "#/$defs/d0", "$defs": definitions | {f"d{length}": {"type": "null"}}}
        constraint = Constraint(ConstraintKind.JSON, json.dumps(schema, separators=(",", ":")))
        try:
            model.check(constraint)
        except GrammarError as refused:
            assert length == 2_500 and "at most" in str(refused)


@pytest.mark.long(reason="computes many steps of a model", moderate=True)
def test_a_trial_that_hangs_or_dies_is_refused_and_the_next_goes_on() -> None:
    trial = Trial(TOKENIZER.to_str, END, most_s=0.5)
    patterns = [{"pattern": f".*[a-z]{{{size}}}.*"} for size in range(1, 40)]
    hangs = Constraint(ConstraintKind.JSON, json.dumps({"type": "string", "allOf": patterns}))
    trial_of_all = Trial(TOKENIZER.to_str, END)
    assert "[0-9]" in trial_of_all.grammar(DIGITS, frozenset()).text
    with pytest.raises(GrammarError, match="more than 0.5 s"):
        trial.grammar(hangs, frozenset())
    process = trial_of_all._process
    assert process is not None
    process.kill()
    process.wait()
    assert "[0-9]" in trial_of_all.grammar(DIGITS, frozenset()).text
    trial.close()
    trial_of_all.close()


def test_a_model_without_an_end_token_is_refused() -> None:
    with pytest.raises(GrammarError, match="no end token"):
        Grammars(TOKENIZER.to_str, ()).check(DIGITS)


def test_a_tokenizer_that_the_library_cannot_read_is_refused() -> None:
    with pytest.raises(GrammarError, match="tokenizer is not supported"):
        Grammars(lambda: '{"model": {}}', (1,)).check(DIGITS)


def test_bits_are_those_of_the_vocabulary(grammars: Grammars) -> None:
    """Of a model with more rows than its tokenizer has tokens, the rest is ruled out."""
    from sundog.runtime.sampling.sampler import Bitmasks

    grammars.check(DIGITS)
    matcher = Matcher(grammars, DIGITS, (END,), ())
    word_W = np.zeros(matcher.num_words, np.int32)
    matcher.fill(word_W)
    logits_RV = torch.zeros(2, 32 * len(word_W) + 100)
    Bitmasks(np.array([1]), word_W[None]).apply(logits_RV)
    assert logits_RV[0].isfinite().all()
    assert set(torch.nonzero(logits_RV[1].isfinite())[:, 0].tolist()) == allowed(matcher)


def test_the_tokenizer_is_read_before_the_first_grammar_comes() -> None:
    """While a model is loaded; where it cannot be read, the first grammar says why."""
    read = []
    model = Grammars(lambda: read.append(1) or RealModel.open(None).tokenizer.to_json(), (2,))  # type: ignore[func-returns-value]
    model.prepare()
    model.prepare()
    assert read == [1]
    model.check(DIGITS)
    assert read == [1, 1], "the process that tries grammars reads it, too"
    without_end = Grammars(lambda: "", ())
    without_end.prepare()
    with pytest.raises(GrammarError, match="has no end token"):
        without_end.check(DIGITS)


def test_a_grammar_that_could_not_be_compiled_ahead_is_not_compiled_again_in_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its matcher fails at once and in the same words; a new request has it compiled once more."""
    grammars = RealModel.open(None).grammars
    tries = []

    def fail(self: Trial, constraint: Constraint, special_tokens: frozenset[str]) -> object:
        tries.append(constraint)
        raise OSError("too many processes")

    with monkeypatch.context() as patch:
        patch.setattr(Trial, "grammar", fail)
        grammars.compile_ahead(DIGITS)
        matcher = Matcher(grammars, DIGITS, (END,), ())
        assert matcher.num_words == 0 and matcher.failed is not None
        assert "too many processes" in matcher.failed and tries == [DIGITS]
    grammars.compile_ahead(DIGITS)
    assert grammars.knows(DIGITS) and Matcher(grammars, DIGITS, (END,), ()).num_words


def test_what_a_request_holds_outlives_the_cache_and_nothing_compiles_in_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cache of one grammar loses the first to the second; the first has its matchers until it is let go."""
    monkeypatch.setattr(kept, "MOST_GRAMMARS", 1)
    grammars, other = RealModel.open(None).grammars, Constraint(ConstraintKind.REGEX, "[a-z]")
    assert grammars.hold(DIGITS) is None
    grammars.compile_ahead(DIGITS)
    num_bytes = grammars.hold(DIGITS)
    assert num_bytes and grammars.hold(DIGITS) == num_bytes
    grammars.compile_ahead(other)

    def no_trial(self: Trial, constraint: Constraint, special_tokens: frozenset[str]) -> object:
        raise AssertionError(f"{constraint.text} is compiled in a step")

    monkeypatch.setattr(Trial, "grammar", no_trial)
    grammars.let_go(DIGITS)
    assert allowed(Matcher(grammars, DIGITS, (END,), ()))
    grammars.let_go(DIGITS)
    late = Matcher(grammars, DIGITS, (END,), ())
    assert late.num_words == 0 and late.failed is not None and "not compiled before the step" in late.failed
