"""Greedy answers on the paged cache equal those of the library's own loop, token for token."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from sundog.actors.core.params.sampling import Sampling
from sundog.runtime.engine.backend import TorchBackend
from tests.runtime.driver import Driver
from tests.runtime.models import LONGROPE, build_model, generate, random_prompt

Opener = Callable[[str], tuple[PreTrainedModel, Path]]
MAIN = ("llama", "qwen3", "mistral")
NUM_TOKENS = 14


@pytest.fixture(scope="module")
def open_model(tmp_path_factory: pytest.TempPathFactory) -> Opener:
    torch.set_num_threads(1)
    models: dict[str, tuple[PreTrainedModel, Path]] = {}

    def opened(architecture: str) -> tuple[PreTrainedModel, Path]:
        if architecture not in models:
            folder = tmp_path_factory.mktemp(architecture)
            models[architecture] = build_model(architecture, folder), folder
        return models[architecture]

    return opened


async def drive(folder: Path, *, budget: int = 24, chunk: int = 16) -> Driver:
    backend = TorchBackend(folder, dtype="float32", block_size=4, num_gpu_blocks=200, max_model_len=128)
    capacity = await backend.load()
    assert (capacity.num_blocks, capacity.block_size) == (200, 4)
    return Driver(backend, budget=budget, chunk=chunk)


@pytest.mark.parametrize("architecture", MAIN)
async def test_a_chunked_prompt_answers_as_generate_does(open_model: Opener, architecture: str) -> None:
    """Chunks of five tokens attend to all chunks before them."""
    model, folder = open_model(architecture)
    prompt = random_prompt(1, 33)
    driver = await drive(folder, chunk=5)
    driver.submit("a", prompt)
    assert (await driver.run(NUM_TOKENS))["a"] == generate(model, prompt, NUM_TOKENS)


@pytest.mark.parametrize("architecture", MAIN)
async def test_requests_batched_together_answer_as_if_alone(open_model: Opener, architecture: str) -> None:
    """Prefill and decode of requests of all lengths share steps, and arrive at different ones."""
    model, folder = open_model(architecture)
    prompts = {str(seed): random_prompt(seed, n) for seed, n in enumerate((40, 9, 23, 1, 90, 17))}
    driver = await drive(folder, budget=32)
    for name, prompt in prompts.items():
        driver.submit(name, prompt)
        await driver.step()
    outputs = await driver.run(NUM_TOKENS)
    for name, prompt in prompts.items():
        assert outputs[name] == generate(model, prompt, len(outputs[name]))


@pytest.mark.parametrize("architecture", MAIN)
async def test_a_preempted_request_goes_on_where_it_was(open_model: Opener, architecture: str) -> None:
    """Its blocks go to others; its tokens are computed again and the answer does not change."""
    model, folder = open_model(architecture)
    prompts = {"a": random_prompt(1, 21), "b": random_prompt(2, 13), "c": random_prompt(3, 8)}
    driver = await drive(folder)
    driver.submit("a", prompts["a"])
    driver.submit("b", prompts["b"])
    for _ in range(6):
        await driver.step()
    driver.preempt("a")
    driver.submit("c", prompts["c"])
    for _ in range(3):
        await driver.step()
    assert 0 < len(driver.sequences["a"].outputs) < NUM_TOKENS
    driver.admit("a")
    outputs = await driver.run(NUM_TOKENS)
    for name, prompt in prompts.items():
        assert outputs[name] == generate(model, prompt, len(outputs[name]))


@pytest.mark.parametrize("architecture", MAIN)
async def test_a_cached_prefix_answers_as_a_computed_one(open_model: Opener, architecture: str) -> None:
    """A request that starts on another's blocks computes only the rest."""
    model, folder = open_model(architecture)
    first = random_prompt(1, 30)
    second = first[:26] + random_prompt(2, 9)
    driver = await drive(folder)
    driver.submit("a", first)
    for _ in range(4):
        await driver.step()
    driver.submit("b", second, sharing="a")
    assert driver.sequences["b"].num_computed == 24
    outputs = await driver.run(NUM_TOKENS)
    for name, prompt in (("a", first), ("b", second)):
        assert outputs[name] == generate(model, prompt, len(outputs[name]))


async def test_an_idle_request_misses_one_step_and_nothing_else(open_model: Opener) -> None:
    """Idle means no token in this step; the answer stays the same."""
    model, folder = open_model("llama")
    prompt = random_prompt(1, 12)
    driver = await drive(folder)
    driver.submit("a", prompt)
    driver.submit("b", random_prompt(2, 5))
    await driver.step()
    assert set(await driver.step(idle=("a",))) == {"b"}
    outputs = await driver.run(NUM_TOKENS)
    assert outputs["a"] == generate(model, prompt, NUM_TOKENS)


async def test_a_seed_gives_the_same_tokens_alone_batched_and_preempted(open_model: Opener) -> None:
    """What else runs, and when, is no part of a request's stream of random numbers."""
    _, folder = open_model("llama")
    prompt = random_prompt(1, 12)
    sampling = Sampling(temperature=0.9, top_p=0.95, top_k=40, seed=7)
    alone = await drive(folder)
    alone.submit("a", prompt, sampling)
    expected = (await alone.run(NUM_TOKENS))["a"]
    driver = await drive(folder)
    driver.submit("x", random_prompt(4, 30), Sampling(temperature=1.0))
    driver.submit("y", prompt, sampling)
    for _ in range(6):
        await driver.step()
    driver.preempt("y")
    await driver.step()
    driver.admit("y")
    outputs = await driver.run(NUM_TOKENS)
    assert outputs["y"] == expected
    assert len(set(expected)) > 3


@pytest.mark.wall_clock
async def test_threads_on_the_wall_clock_give_the_same_tokens(open_model: Opener) -> None:
    """Where the work runs is not what it answers."""
    model, folder = open_model("llama")
    prompt = random_prompt(1, 12)
    driver = await drive(folder)
    driver.submit("a", prompt)
    assert (await driver.run(5))["a"] == generate(model, prompt, 5)


async def test_longrope_turns_by_its_long_factors_where_contexts_may_be_long(tmp_path: Path) -> None:
    """The library changes factors at the 65th token, where kept keys would not agree; ours never changes."""
    model = build_model("phi3", tmp_path, rope_parameters=LONGROPE, original_max_position_embeddings=64)
    short, long = random_prompt(1, 20), random_prompt(2, 80)
    driver = await drive(tmp_path)  # max_model_len 128
    driver.submit("long", long)
    driver.submit("short", short)
    answers = await driver.run(NUM_TOKENS)
    assert answers["long"] == generate(model, long, NUM_TOKENS)
    by_short = generate(model, short, NUM_TOKENS)
    model.model.rotary_emb.inv_freq.copy_(model.model.rotary_emb.long_inv_freq)
    model.model.rotary_emb.original_inv_freq.copy_(model.model.rotary_emb.long_inv_freq)
    assert answers["short"] == generate(model, short, NUM_TOKENS) != by_short


async def test_longrope_turns_by_its_short_factors_where_no_context_is_long(tmp_path: Path) -> None:
    model = build_model("phi3", tmp_path, rope_parameters=LONGROPE, original_max_position_embeddings=64)
    backend = TorchBackend(tmp_path, dtype="float32", block_size=4, num_gpu_blocks=200, max_model_len=64)
    await backend.load()
    driver, prompt = Driver(backend), random_prompt(1, 20)
    driver.submit("a", prompt)
    assert (await driver.run(NUM_TOKENS))["a"] == generate(model, prompt, NUM_TOKENS)
