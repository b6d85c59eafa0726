"""A request that fails in the model or in sampling ends alone, and all its state is freed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from sundog.actors.core.params.sampling import Sampling
from sundog.runtime.engine.backend import TorchBackend
from tests.runtime.driver import Driver
from tests.runtime.models import build_model, generate, random_prompt

BROKEN_TOKEN = 255
NUM_TOKENS = 10


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PreTrainedModel, Path]]:
    """A model that computes what is no number from one of its tokens."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("broken")
    model = build_model("llama", folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][BROKEN_TOKEN] = float("nan")
    weights["lm_head.weight"][BROKEN_TOKEN] = 0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model.load_state_dict(weights)
    return model, folder


def prompt(seed: int, num_tokens: int) -> list[int]:
    return [token % BROKEN_TOKEN for token in random_prompt(seed, num_tokens)]


async def drive(folder: Path, num_blocks: int = 50) -> Driver:
    backend = TorchBackend(
        folder, dtype="float32", block_size=4, num_gpu_blocks=num_blocks, max_model_len=128
    )
    await backend.load()
    return Driver(backend, num_blocks=num_blocks, budget=48)


async def test_a_row_that_is_not_a_number_ends_alone_and_its_blocks_are_clean(
    broken: tuple[PreTrainedModel, Path],
) -> None:
    """Its neighbours answer as if alone, and so does whoever is given its blocks afterwards."""
    model, folder = broken
    good = {"a": prompt(1, 17), "b": prompt(2, 5)}
    driver = await drive(folder)
    for name, tokens in good.items():
        driver.submit(name, tokens)
    await driver.step()
    driver.submit("bad", [*prompt(3, 26), BROKEN_TOKEN, *prompt(4, 2)])
    held = set(driver.sequences["bad"].blocks)
    for _ in range(3):
        await driver.step()
    assert set(driver.failed) == {"bad"} and "no token can be chosen" in driver.failed["bad"]
    for number in range(8):
        good[f"later {number}"] = prompt(10 + number, 5 + number)
        driver.submit(f"later {number}", good[f"later {number}"])
    reused = set()
    for _ in range(NUM_TOKENS - 2):
        await driver.step()
        reused |= held.intersection(block for s in driver.sequences.values() for block in s.blocks)
    assert reused
    outputs = await driver.run(NUM_TOKENS)
    assert set(driver.failed) == {"bad"}
    for name, tokens in good.items():
        assert outputs[name] == generate(model, tokens, len(outputs[name]))


async def test_a_parameter_that_raises_ends_its_request_alone(broken: tuple[PreTrainedModel, Path]) -> None:
    """In the middle of a batch of greedy and drawn rows, whose tokens do not change."""
    _, folder = broken
    requests = {
        "greedy": Sampling(temperature=0.0),
        "drawn": Sampling(seed=5, top_p=0.9),
        "early": Sampling(temperature=0.0, min_tokens=6, stop_token_ids=(7,)),
    }

    async def answers(more: dict[str, Sampling]) -> tuple[dict[str, list[int]], dict[str, str]]:
        driver = await drive(folder)
        for number, (name, sampling) in enumerate((requests | more).items()):
            driver.submit(name, prompt(number, 6 + number), sampling)
        outputs = await driver.run(NUM_TOKENS)
        return {name: outputs[name] for name in requests}, driver.failed

    expected, failed = await answers({})
    assert not failed
    bad = {"bad": Sampling(top_k="all"), "nan": Sampling(temperature=float("nan"))}  # type: ignore[arg-type]
    outputs, failed = await answers(bad)
    assert outputs == expected
    assert set(failed) == set(bad)
    assert all("sampling parameters cannot be used" in reason for reason in failed.values())
