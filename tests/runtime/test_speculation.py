"""Drafts change the number of steps but not the answer, with scheduler and torch."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from sundog.actors.config import EngineConfig, SchedulerConfig
from sundog.actors.config.speculative import SpeculativeConfig
from sundog.actors.core.params.sampling import Sampling
from sundog.actors.front.codec import Vocabulary
from sundog.actors.messages import Capacity, Generate
from sundog.runtime.engine.backend import TorchBackend
from sundog.runtime.engine.speculator import lookup
from sundog.sim.backend import Pace, Paced
from sundog.sim.cost.calibrated import Calibrated
from sundog.sim.record.journal import Journal
from sundog.sim.replay import replay_on
from sundog.sim.trace.record import TraceRequest
from tests.runtime.models import VOCAB_SIZE, build_model, random_prompt

COST = Calibrated(0.004, 0.0002, 1e-6, 1e-4, 1e-7)
NUM_BLOCKS, BLOCK_SIZE, CONTEXT = 27, 4, 100
EOS = 7
NGRAM = SpeculativeConfig("ngram", 4, lookup_min=1, lookup_max=3)
Opener = Callable[[str], Path]
Rows = tuple[list[TraceRequest], dict[str, Generate]]


@pytest.fixture(scope="module")
def open_model(tmp_path_factory: pytest.TempPathFactory) -> Opener:
    torch.set_num_threads(1)
    folders: dict[str, Path] = {}

    def opened(architecture: str) -> Path:
        if architecture not in folders:
            folders[architecture] = tmp_path_factory.mktemp(architecture)
            build_model(architecture, folders[architecture])
        return folders[architecture]

    return opened


def requests(seed: int, *, sampling: Callable[[int], Sampling] | None = None, count: int = 10) -> Rows:
    """Arrivals close together; prompts that repeat themselves, half of them with one prefix."""
    rng = random.Random(seed)
    shared = random_prompt(seed, 14)
    rows, asked, now_s = [], {}, 0.0
    for number in range(count):
        own = random_prompt(100 * seed + number, rng.randint(3, 9)) * rng.randint(1, 3)
        prompt = tuple(shared + own if number % 2 else own)
        name = f"r{number}"
        limits = Sampling(
            temperature=0.0, max_tokens=rng.choice([1, 2, 9, 30, 50]), ignore_eos=number % 3 > 0
        )
        asked[name] = Generate(prompt, limits if sampling is None else sampling(number), request_id=name)
        rows.append(TraceRequest(name, now_s, len(prompt), 1))
        now_s += rng.expovariate(80)
    return rows, asked


def played(
    folder: Path, rows: Rows, speculation: SpeculativeConfig | None, **limits: int
) -> tuple[dict[str, list[int]], Journal]:
    """The tokens of each request, and all steps."""
    speculates = speculation is not None
    scheduler = SchedulerConfig(
        **{"max_num_seqs": 6, "max_num_batched_tokens": 24, "num_gpu_blocks": NUM_BLOCKS} | limits,  # type: ignore[arg-type]
        max_model_len=CONTEXT,
        block_size=BLOCK_SIZE,
        num_speculative_tokens=speculation.num_tokens if speculates else 0,
        num_lookahead_tokens=speculation.num_lookahead_tokens if speculates else 0,
    )
    backend = TorchBackend(
        folder,
        dtype="float32",
        block_size=BLOCK_SIZE,
        num_gpu_blocks=scheduler.num_gpu_blocks,
        max_model_len=CONTEXT,
        speculation=speculation,
        eos_token_ids=(EOS,),
    )
    journal = Journal()
    replay_on(
        rows[0],
        EngineConfig(scheduler=scheduler, debug=True),
        [Paced(backend, Pace(COST, "runner-0"))],
        Capacity(scheduler.num_gpu_blocks or 0, BLOCK_SIZE),
        generate_for=lambda row: rows[1][row.request_id],
        listeners=[journal],
        vocabulary=Vocabulary(eos_token_id=EOS, size=VOCAB_SIZE),
    )
    tokens: dict[str, list[int]] = {}
    for output in journal.outputs:
        for name, token in output.tokens or ():
            tokens.setdefault(name, []).append(token)
    return tokens, journal


def counts(journal: Journal) -> tuple[int, int, int]:
    """Drafts that were verified and accepted, and preemptions."""
    return (
        sum(output.batch.num_draft_tokens for output in journal.outputs),
        sum(count for output in journal.outputs for _, count in output.accepted),
        sum(len(output.batch.preempted) for output in journal.outputs),
    )


ARCHITECTURES = ("llama", "qwen3", "mistral", "gemma2", "gpt_oss", "deepseek_v3", "gpt2", "mixtral")


@pytest.mark.long(keep=2, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_answers_are_those_without_drafts(open_model: Opener, architecture: str) -> None:
    """N-grams and a draft model, under chunks, preemption, prefix hits and mixed batches."""
    folder = open_model(architecture)
    rows = requests(1)
    plain, steps = played(folder, rows, None)
    assert counts(steps)[2] > 0, "nothing was preempted"
    for speculation in (NGRAM, SpeculativeConfig("draft_model", 3, model=str(folder))):
        tokens, drafted = played(folder, rows, speculation)
        num_drafts, num_accepted, num_preempted = counts(drafted)
        assert tokens == plain, speculation.method
        assert num_preempted > 0 and 0 < num_accepted < num_drafts
        if speculation is not NGRAM:  # these texts seldom repeat themselves, and wrong drafts take budget
            assert len(drafted.outputs) < len(steps.outputs)


def test_a_model_that_drafts_for_itself_is_nearly_always_right(open_model: Opener) -> None:
    """What is rejected lies behind an end, or was drafted where a block was missing."""
    folder = open_model("llama")
    _, drafted = played(
        folder, requests(2), SpeculativeConfig("draft_model", 4, model=str(folder)), num_gpu_blocks=200
    )
    ended = {finish.request_id for output in drafted.outputs for finish in output.finished}
    rejected = sum(
        dict(output.batch.drafts)[name] - count
        for output in drafted.outputs
        for name, count in output.accepted
        if name not in {finish.request_id for finish in output.finished}
    )
    assert ended and rejected == 0


@pytest.mark.long(reason="computes many steps of a model", moderate=True)
def test_another_model_drafts_without_changing_an_answer(open_model: Opener) -> None:
    """Its guesses are wrong, all of them perhaps."""
    rows = requests(3)
    plain, _ = played(open_model("llama"), rows, None)
    asked = SpeculativeConfig("draft_model", 5, model=str(open_model("gpt2")))
    tokens, drafted = played(open_model("llama"), rows, asked)
    assert tokens == plain and counts(drafted)[0] > 0


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("budget", [1, 2, 3])
def test_a_budget_below_the_drafts_changes_no_answer(open_model: Opener, budget: int) -> None:
    folder, rows = open_model("llama"), requests(4, count=4)
    plain, _ = played(folder, rows, None)
    own = SpeculativeConfig("draft_model", 4, model=str(folder))
    assert played(folder, rows, own, max_num_batched_tokens=budget)[0] == plain


def test_a_pool_of_one_request_holds_the_lookahead(open_model: Opener) -> None:
    """Slots for drafts end with the context: the smallest pool that may be served does not stall."""
    folder, rows = open_model("llama"), requests(5, count=4)
    plain, _ = played(folder, rows, None)
    own = SpeculativeConfig("draft_model", 20, model=str(folder))
    assert played(folder, rows, own, num_gpu_blocks=CONTEXT // BLOCK_SIZE + 1)[0] == plain


@pytest.mark.long(reason="computes many steps of a model", moderate=True)
def test_drafts_of_more_than_the_context_end_with_it(open_model: Opener) -> None:
    """Up to the last token that the context holds."""
    folder = open_model("llama")
    rows = requests(6, sampling=lambda number: Sampling(temperature=0.0, ignore_eos=True), count=2)
    plain, _ = played(folder, rows, None)
    for asked in (
        SpeculativeConfig("ngram", 128, lookup_min=1, lookup_max=2),
        SpeculativeConfig("draft_model", 128, model=str(folder)),
    ):
        assert played(folder, rows, asked)[0] == plain
    assert {len(plain[name]) + row.num_prompt_tokens for name, row in zip(plain, rows[0], strict=True)} == {
        CONTEXT
    }


def mixed(number: int) -> Sampling:
    """Parameters of every kind: those that look at earlier tokens decode one by one."""
    kinds = (
        {"seed": 11, "temperature": 0.9, "top_p": 0.95, "top_k": 40},
        {"temperature": 1.0, "min_p": 0.02},
        {"temperature": 0.0, "repetition_penalty": 1.3},
        {"temperature": 0.7, "presence_penalty": 0.5, "frequency_penalty": 0.5},
        {"temperature": 0.8, "logit_bias": ((9, 4.0), (12, -3.0)), "min_tokens": 6},
        {"temperature": 0.0, "bad_words_token_ids": ((5, 6),), "bad_words": ("x",)},
        {"temperature": 1.2, "allowed_token_ids": tuple(range(40)), "stop_token_ids": (11,)},
        {"temperature": 0.0, "logprobs": 3},
        {"temperature": 0.0, "thinking_token_budget": number % 5, "thought": (number % 20, 21)},
    )
    return Sampling(max_tokens=24, **kinds[number % len(kinds)])  # type: ignore[arg-type]


@pytest.mark.long(reason="computes many steps of a model", moderate=True)
def test_sampled_answers_and_their_seeds_are_those_without_drafts(open_model: Opener) -> None:
    """The same random number decides a token whether it was drafted or not."""
    folder = open_model("llama")
    rows = requests(7, sampling=mixed, count=16)
    plain, _ = played(folder, rows, None)
    for speculation in (NGRAM, SpeculativeConfig("draft_model", 3, model=str(folder))):
        tokens, drafted = played(folder, rows, speculation)
        assert tokens == plain, speculation.method
        verified = {name for output in drafted.outputs for name, _ in output.batch.drafts}
        assert not verified & {f"r{n}" for n in range(16) if n % 9 in (2, 3, 5, 7, 8)}
        assert counts(drafted)[1] > 0


@pytest.mark.long(reason="computes many steps of a model", moderate=True)
def test_what_is_accepted_and_what_replaces_it_has_the_models_distribution(open_model: Opener) -> None:
    """The first two tokens of many seeds, drafted by a model that is not it: chi-square at 1 in 10,000."""
    folder, count = open_model("llama"), 1500
    prompt = tuple(random_prompt(8, 6))
    asked = {
        f"r{n}": Generate(
            prompt, Sampling(temperature=0.6, top_k=5, max_tokens=3, seed=n), request_id=f"r{n}"
        )
        for n in range(count)
    }
    rows = [TraceRequest(name, 0.0, len(prompt), 1) for name in asked]
    other = SpeculativeConfig("draft_model", 2, model=str(open_model("qwen3")))
    tokens, drafted = played(
        folder, (rows, asked), other, max_num_seqs=64, max_num_batched_tokens=512, num_gpu_blocks=2000
    )
    assert counts(drafted)[0] > count
    model = build_model("llama", folder)
    first = Counter(answer[0] for answer in tokens.values())
    checked = 0
    for token, total in first.most_common(2):
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, token]])).logits[0, -1].double() / 0.6
        kept = logits.topk(5)
        expected = kept.values.softmax(-1).numpy() * total
        seen = Counter(answer[1] for answer in tokens.values() if answer[0] == token)
        observed = np.array([seen[t] for t in kept.indices.tolist()])
        assert observed.sum() == total, "a token that top_k rules out"
        assert ((observed - expected) ** 2 / expected).sum() < 23.5, (observed, expected)
        checked += total
    assert checked > count / 3


@pytest.mark.parametrize(
    ("tokens", "least", "most", "found"),
    [
        ([1, 2, 3, 4, 1, 2, 3], 2, 3, [4, 1]),
        ([1, 2, 9, 2, 3, 1, 2], 1, 3, [9, 2]),
        ([5, 2, 3, 8, 2, 3, 9, 2, 3], 1, 3, [8, 2]),
        ([1, 2, 3, 4, 5], 1, 3, []),
        ([7, 7, 7], 1, 2, [7]),
        ([4, 1, 2, 8, 3, 1, 2], 3, 4, []),
        ([3], 1, 2, []),
    ],
)
def test_prompt_lookup_takes_the_longest_ngram_where_it_came_first(
    tokens: list[int], least: int, most: int, found: list[int]
) -> None:
    drafts = lookup(np.array(tokens), least=least, most=most, num_drafts=2)
    assert drafts.tolist() == found
