"""Rows are padded to few sizes, without effect on results."""

import random
from pathlib import Path

import pytest
import torch
from torch import nn

from sundog.actors.core.params.sampling import Sampling
from sundog.runtime.attention.groups import Group
from sundog.runtime.attention.paged_cache import LayerShape, PagedKVCache
from sundog.runtime.attention.step import PagedStep
from sundog.runtime.engine.backend import TorchBackend
from sundog.runtime.native.linear import PackedLinear
from sundog.runtime.step.ladder import padded
from tests.runtime.driver import Driver
from tests.runtime.models import build_model, random_prompt


def test_the_ladder_holds_every_number_and_has_few_sizes() -> None:
    """The largest steps of a server included, and never more than an eighth above what is needed."""
    sizes = [padded(num_rows) for num_rows in range(8193)]
    assert all(size >= num_rows for num_rows, size in enumerate(sizes))
    assert all(size <= 1.125 * num_rows for num_rows, size in enumerate(sizes) if num_rows > 64)
    assert sizes == sorted(sizes) and [padded(size) for size in sizes] == sizes
    assert len(set(sizes)) < 70
    assert {1, 2, 4, 8, 16, 32, 64, 128, 256, 2048} <= set(sizes)


async def test_linear_layers_see_few_numbers_of_rows(tmp_path: Path) -> None:
    """Whatever mixture of chunks and decodes comes along: each number costs a kernel for good."""
    build_model("llama", tmp_path)
    seen: set[int] = set()

    def note(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        if isinstance(module, (nn.Linear, PackedLinear)):
            seen.add(args[0].shape[-2])

    backend = TorchBackend(tmp_path, block_size=4, num_gpu_blocks=200, max_model_len=64)
    await backend.load()
    rng, driver, asked = random.Random(0), Driver(backend, budget=96, chunk=48), set()
    hook = nn.modules.module.register_module_forward_pre_hook(note)  # type: ignore[arg-type]  # args are tensors
    try:
        for number in range(60):
            driver.submit(str(number), random_prompt(number, rng.randint(1, 40)), Sampling(seed=number))
            running = [name for name, sequence in driver.sequences.items() if sequence.running]
            for name in running[: max(0, len(running) - rng.randint(1, 10))]:
                driver.finish(name)
            before = {name: s.num_computed for name, s in driver.sequences.items() if s.running}
            await driver.step()
            asked.add(sum(driver.sequences[name].num_computed - n for name, n in before.items()))
    finally:
        hook.remove()
    assert len(asked) > 30
    assert seen - {0} <= {padded(num_rows) for num_rows in range(97)} and len(seen) < 17


@pytest.mark.parametrize("num_padding", [0, 1, 5])
def test_padding_leaves_nothing_in_the_cache_and_changes_no_row(num_padding: int) -> None:
    torch.manual_seed(0)
    cache = PagedKVCache([LayerShape(2, 8, 8, torch.float32)], 6, 4, torch.device("cpu"))
    group = Group(0, torch.tensor([[3], [5]]), torch.tensor([[1], [0]]), 4)
    step = PagedStep(cache, torch.tensor([13, 20]), [group])
    q_THD, k_TKD, v_TKE = torch.randn(7, 4, 8), torch.randn(7, 2, 8), torch.randn(7, 2, 8)
    rows = slice(0, 2 + num_padding)
    out_THE = step.attend(
        0, q_THD[rows], k_TKD[rows], v_TKE[rows], scaling=0.3, window=None, softcap=None, sinks_H=None
    )
    assert out_THE.shape == (2 + num_padding, 4, 8)
    assert not out_THE[2:].any()
    assert torch.equal(out_THE[1], v_TKE[1].repeat_interleave(2, 0))
    written = [slot for slot in range(24) if cache.keys_SPKD[0].flatten(0, 1)[slot].any()]
    assert written == [13, 20]
