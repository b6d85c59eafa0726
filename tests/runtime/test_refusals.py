"""Sizes that cannot be served are refused when a model is loaded, in one line that names the option."""

from pathlib import Path

import pytest

from sundog.actors.core.config import ConfigError
from sundog.runtime.engine.backend import TorchBackend
from tests.runtime.models import build_model


async def load(folder: Path, **settings: int) -> None:
    backend = TorchBackend(folder, **{"max_model_len": 64, "block_size": 4, **settings})
    await backend.load()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {"num_gpu_blocks": 5},
            "--num-gpu-blocks 5 cannot hold one request of --max-model-len 64: it needs 17",
        ),
        ({"num_gpu_blocks": 99_999_999_999}, r"not enough memory .* has [\d.]+ GiB; lower --num-gpu-blocks"),
        ({"num_gpu_blocks": 10**30}, r"not enough memory .* has [\d.]+ GiB; lower --num-gpu-blocks"),
        ({"max_model_len": 10**12}, r"not enough memory .* has [\d.]+ GiB; lower --max-model-len"),
        ({"block_size": 10**12}, r"not enough memory .* has [\d.]+ GiB; lower --max-model-len"),
        ({"num_threads": 0}, "--num-threads is 0: there are 1 to"),
        ({"num_threads": 10**6}, "--num-threads is 1000000: there are 1 to"),
    ],
)
async def test_sizes_beyond_the_machine_are_refused_before_they_are_taken(
    settings: dict[str, int], reason: str, tmp_path: Path
) -> None:
    build_model("llama", tmp_path)
    with pytest.raises(ConfigError, match=reason) as caught:
        await load(tmp_path, **settings)
    assert "\n" not in str(caught.value)


async def test_engines_of_one_machine_divide_its_memory(tmp_path: Path) -> None:
    """What one has promised to itself and not yet written would look free to the next."""
    build_model("llama", tmp_path)
    for num_sharing in (1, 4):
        backend = TorchBackend(tmp_path, max_model_len=64, max_num_seqs=10**9, num_sharing=num_sharing)
        capacity = await backend.load()
        await backend.close()
        if num_sharing == 1:
            alone = capacity.num_blocks
    assert 3 < alone / capacity.num_blocks < 5
