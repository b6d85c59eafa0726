"""Packed linear layers compute what plain ones do."""

from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

from runtime.engine import backend
from runtime.native.linear import PackedLinear, pack_linears
from tests.runtime.models import build_model

pytestmark = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU does not compute in bf16"
)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 9])
def test_packed_is_plain_within_rounding(rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 32, bias=bias)).bfloat16().requires_grad_(False)
    x = torch.randn(1, rows, 48, dtype=torch.bfloat16)
    plain = model(x)
    assert pack_linears(model) == 1
    torch.testing.assert_close(model(x), plain, rtol=2e-2, atol=2e-2)


def test_a_layer_in_two_places_is_packed_once() -> None:
    shared = nn.Linear(32, 32, dtype=torch.bfloat16)
    model = nn.ModuleList([nn.Sequential(shared), nn.Sequential(shared)])
    assert pack_linears(model) == 1
    assert isinstance(model[0][0], PackedLinear)
    assert model[0][0] is model[1][0]


def test_float32_is_left_alone() -> None:
    """It is the precision in which answers equal the library's token for token."""
    assert pack_linears(nn.Sequential(nn.Linear(16, 16))) == 0


async def test_a_packed_model_holds_no_file_open(tmp_path: Path) -> None:
    """Its weights would be counted twice, and a file that changes would change the model."""
    build_model("llama", tmp_path)
    served = backend.TorchBackend(tmp_path, dtype="bfloat16", max_model_len=64, num_gpu_blocks=64)
    await served.load()
    mapped = {file.path for file in psutil.Process().memory_maps()}
    assert mapped and not any(path.startswith(str(tmp_path)) for path in mapped)
