"""Batch invariance: with our kernels an answer is bit-equal whatever else is in the batch.

The law of `docs/served.md`. A request's logits at each of its tokens are compared with those that it gets
alone: among others that decode and prompts of any lengths, with its prompt in chunks of any size, preempted
and computed again, on any number of threads.
"""

import random
from ctypes import CDLL
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sundog.runtime.engine.backend import TorchBackend
from sundog.runtime.model import model as model_room
from sundog.runtime.model.model import Model
from sundog.runtime.native import few_bits, linear
from sundog.runtime.native.library import open_library
from sundog.runtime.step.step import Step
from tests.runtime.driver import Driver
from tests.runtime.models import random_prompt
from tests.runtime.test_native_decoder import build_wide
from tests.runtime.variants import EACH_VARIANT

FORMATS = [
    ("float32", None),
    ("float16", None),
    ("bfloat16", None),
    ("bfloat16", "int8"),
    ("bfloat16", "int4"),
]
"""Everything that is served on a CPU: what is computed in, and whole numbers of a few bits."""
NUM_PROMPT, NUM_ANSWER = 150, 8
# Widths of whole groups of whole numbers, and more inputs than are multiplied at once.
WIDTHS = {"hidden_size": 128, "intermediate_size": 640, "vocab_size": 256}


@pytest.fixture(params=EACH_VARIANT)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CDLL:
    found = open_library(request.param)
    for room in (model_room, linear, few_bits):
        monkeypatch.setattr(room, "kernels", lambda: found)
    return found


@pytest.fixture
def logits_of_a(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The logits of requests whose names begin with an a, step by step."""
    found: list[Tensor] = []
    whole = Model.logits

    def logits(self: Model, step: Step) -> Tensor:
        assert self.is_whole
        rows = whole(self, step)
        found.extend(row.clone() for name, row in zip(step.request_ids, rows, strict=True) if name[0] == "a")
        return rows

    monkeypatch.setattr(Model, "logits", logits)
    return found


async def load(folder: Path, dtype: str, quantization: str | None) -> TorchBackend:
    backend = TorchBackend(
        folder,
        dtype=dtype,
        quantization=quantization,
        max_model_len=256,
        num_gpu_blocks=2000,
        block_size=4,
        max_num_seqs=64,
    )
    await backend.load()
    return backend


async def answer(driver: Driver, logits: list[Tensor], name: str, num_others: int = 0) -> list[Tensor]:
    """Logits of NUM_ANSWER tokens of a request, while others begin and end around it.

    Beside others it is preempted once, and computed again.
    """
    logits.clear()
    rng = random.Random(num_others)
    for number in range(num_others):
        driver.submit(f"before {name} {number}", random_prompt(number, rng.randint(1, 60)))
    driver.submit(name, random_prompt(1, NUM_PROMPT))
    number, is_new = 0, num_others > 0
    while len(logits) < NUM_ANSWER:
        await driver.step()
        if is_new and len(logits) == NUM_ANSWER // 2:
            is_new = False
            driver.preempt(name)
            await driver.step()
            driver.admit(name)
        if num_others:
            driver.finish(
                rng.choice([each for each, s in driver.sequences.items() if s.running and each != name])
            )
            driver.submit(f"beside {name} {number}", random_prompt(number, rng.randint(1, 30)))
            number += 1
    for each, sequence in driver.sequences.items():
        if sequence.running:
            driver.finish(each)
    await driver.step()
    return [row.clone() for row in logits]


@pytest.mark.long(keep=12, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize("architecture", ["qwen3", "mixtral"])
@pytest.mark.parametrize(("dtype", "quantization"), FORMATS)
async def test_an_answer_does_not_depend_on_what_else_is_in_the_batch(
    library: CDLL,
    logits_of_a: list[Tensor],
    dtype: str,
    quantization: str | None,
    architecture: str,
    tmp_path: Path,
) -> None:
    """Nor on chunks and threads."""
    build_wide(architecture, tmp_path, **WIDTHS)
    driver = Driver(await load(tmp_path, dtype, quantization), num_blocks=2000, budget=512, chunk=256)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = await answer(driver, logits_of_a, "a")
    assert len({int(row.argmax()) for row in alone}) > 1, "all tokens are equal: nothing is told apart"
    torch.set_num_threads(2)
    for chunk, num_others in ((1, 0), (7, 3), (64, 20), (256, 40)):
        driver.chunk = chunk
        among = await answer(driver, logits_of_a, f"a{chunk}", num_others)
        assert len(among) == len(alone)
        assert all(torch.equal(x, y) for x, y in zip(alone, among, strict=True)), (chunk, num_others)
    torch.set_num_threads(before)
