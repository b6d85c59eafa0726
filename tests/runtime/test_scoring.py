"""Log probabilities of prompts and answers are those of the library's own forward pass."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from sundog.actors.core.params.logprobs import TokenLogprobs
from sundog.actors.core.params.sampling import Sampling
from sundog.runtime.engine.backend import TorchBackend
from tests.runtime.driver import Driver
from tests.runtime.models import ARCHITECTURES, build_model, random_prompt

SCORED = Sampling(temperature=0.0, logprobs=2, prompt_logprobs=3)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, Path]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("llama")
    return build_model("llama", folder), folder


async def drive(folder: Path, *, chunk: int = 16) -> Driver:
    backend = TorchBackend(folder, dtype="float32", block_size=4, num_gpu_blocks=200, max_model_len=128)
    await backend.load()
    return Driver(backend, budget=24, chunk=chunk)


def assert_scores(
    model: PreTrainedModel, tokens: list[int], found: Sequence[TokenLogprobs], first: int, num_top: int
) -> None:
    """These are the scores of the tokens from position `first` on, in a single pass over all of them."""
    with torch.no_grad():
        logprob_TV = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
    assert len(found) == len(tokens) - first
    for position, each in enumerate(found, first):
        logprob_V = logprob_TV[position - 1]
        assert each.token_id == tokens[position]
        assert each.logprob == pytest.approx(float(logprob_V[each.token_id]), abs=1e-3)
        assert each.rank == 1 + int((logprob_V > logprob_V[each.token_id]).sum())
        best = logprob_V.topk(num_top)
        assert list(each.top_ids) == best.indices.tolist()
        assert each.top_logprobs == pytest.approx(best.values.tolist(), abs=1e-3)


def assert_all_scored(model: PreTrainedModel, driver: Driver, name: str) -> None:
    sequence = driver.sequences[name]
    first, *scores = driver.prompt_logprobs[name]
    assert first is None
    assert_scores(model, sequence.prompt, [each for each in scores if each is not None], 1, 3)
    assert_scores(model, sequence.tokens, driver.logprobs[name], len(sequence.prompt), 2)


@pytest.mark.parametrize("chunk", [1, 5, 16])
async def test_a_chunked_prompt_is_scored_whole(llama: tuple[PreTrainedModel, Path], chunk: int) -> None:
    """Each token once, whatever the chunks, beside others that want none."""
    model, folder = llama
    driver = await drive(folder, chunk=chunk)
    driver.submit("x", random_prompt(2, 20))
    driver.submit("a", random_prompt(1, 33), SCORED)
    driver.submit("b", random_prompt(3, 2), SCORED)
    await driver.run(4)
    for name in ("a", "b"):
        assert_all_scored(model, driver, name)
    assert set(driver.prompt_logprobs) == set(driver.logprobs) == {"a", "b"}


@pytest.mark.parametrize("num_steps", [1, 2, 5])
async def test_a_preempted_prompt_is_scored_whole(
    llama: tuple[PreTrainedModel, Path], num_steps: int
) -> None:
    """Preempted in the middle of its prompt it is scored anew; later it is not scored again."""
    model, folder = llama
    driver = await drive(folder, chunk=12)
    driver.submit("a", random_prompt(1, 33), SCORED)
    for _ in range(num_steps):
        await driver.step()
    driver.preempt("a")
    await driver.step()
    scored_before = list(driver.prompt_logprobs["a"])
    driver.admit("a")
    if num_steps == 5:
        driver.prompt_logprobs.clear()
    await driver.run(6)
    if num_steps == 5:
        assert driver.prompt_logprobs == {}
        driver.prompt_logprobs["a"] = scored_before
    assert_all_scored(model, driver, "a")


async def test_logits_are_made_a_part_at_a_time(
    llama: tuple[PreTrainedModel, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for the logits of three positions at once, nothing changes."""
    model, folder = llama
    monkeypatch.setattr("sundog.runtime.step.scoring.MOST_LOGITS", 3 * model.config.vocab_size)
    driver = await drive(folder)
    driver.submit("a", random_prompt(1, 33), SCORED)
    await driver.run(2)
    assert_all_scored(model, driver, "a")


async def test_a_prompt_of_one_token_has_nothing_to_score(llama: tuple[PreTrainedModel, Path]) -> None:
    driver = await drive(llama[1])
    driver.submit("a", [7], SCORED)
    await driver.run(2)
    assert [part for part in driver.prompt_logprobs.get("a", [None])] == [None]


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name != "llama"])
async def test_other_architectures_are_scored_by_their_own_heads(architecture: str, tmp_path: Path) -> None:
    """Scaled, capped or shared: what the library does behind its layers is done to scored logits, too."""
    model = build_model(architecture, tmp_path)
    driver = await drive(tmp_path)
    driver.submit("a", random_prompt(1, 21), SCORED)
    await driver.run(2)
    assert_all_scored(model, driver, "a")


async def test_where_a_head_cannot_be_asked_alone_the_request_fails_alone(
    llama: tuple[PreTrainedModel, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a reason; in the middle of its prompt, so that it never has a token."""
    _, folder = llama
    monkeypatch.setattr("sundog.runtime.step.scoring._layers", lambda model: model.lm_head)
    driver = await drive(folder, chunk=4)
    driver.submit("a", random_prompt(1, 21), SCORED)
    driver.submit("b", random_prompt(1, 21))
    outputs = await driver.run(3)
    assert "prompt_logprobs" in driver.failed["a"] and outputs["a"] == [] and len(outputs["b"]) >= 3
