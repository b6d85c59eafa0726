"""Packed linear layers compute what plain ones do."""

from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

from sundog.runtime.engine import backend
from sundog.runtime.native import linear
from sundog.runtime.native.library import kernels
from sundog.runtime.native.linear import OneDnnPacked, Packed, PackedLinear, pack_linears
from tests.runtime.models import build_model
from tests.runtime.variants import needs_kernels

HAS_BF16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
CLOSE = {torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@needs_kernels
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 9])
@pytest.mark.parametrize("dtype", CLOSE)
def test_packed_is_plain_within_rounding(dtype: torch.dtype, rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 32, bias=bias)).to(dtype).requires_grad_(False)
    x = torch.randn(1, rows, 48, dtype=dtype)
    plain = model(x)
    assert pack_linears(model) == 1
    torch.testing.assert_close(model(x), plain, rtol=CLOSE[dtype], atol=CLOSE[dtype])


@needs_kernels
def test_a_layer_in_two_places_is_packed_once() -> None:
    shared = nn.Linear(32, 32, dtype=torch.bfloat16)
    model = nn.ModuleList([nn.Sequential(shared), nn.Sequential(shared)])
    assert pack_linears(model) == 1
    assert isinstance(model[0][0], PackedLinear)
    assert model[0][0] is model[1][0]


@needs_kernels
def test_columns_that_begin_within_a_block_are_copied() -> None:
    """With their biases."""
    torch.manual_seed(0)
    library = kernels()
    assert library is not None
    whole, x = nn.Linear(48, 200, dtype=torch.bfloat16).requires_grad_(False), torch.randn(3, 48).bfloat16()
    packed = Packed(whole.weight, whole.bias, library)
    assert torch.equal(packed.columns(70, 97).of(x), packed.of(x)[:, 70:167])


@pytest.mark.parametrize(
    "plain",
    [
        nn.Linear(33, 64, dtype=torch.bfloat16),  # inputs are packed in pairs
        nn.Linear(64, 8),  # most of a block would be empty
        nn.Linear(64, 64, dtype=torch.float64),
    ],
)
def test_what_the_kernels_do_not_pack_is_left_alone(plain: nn.Linear) -> None:
    model = nn.Sequential(plain)
    if kernels() is not None or plain.weight.dtype is not torch.bfloat16:
        assert pack_linears(model) == 0 and model[0] is plain


@pytest.mark.skipif(not HAS_BF16, reason="this CPU does not compute in bf16")
def test_without_kernels_onednn_packs_what_it_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16; float32 stays as it is."""
    monkeypatch.setattr(linear, "kernels", lambda: None)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 32, dtype=torch.bfloat16)).requires_grad_(False)
    x = torch.randn(1, 9, 48, dtype=torch.bfloat16)
    plain = model(x)
    assert pack_linears(model) == 1 and isinstance(model[0].packed, OneDnnPacked)
    torch.testing.assert_close(model(x), plain, rtol=2e-2, atol=2e-2)
    assert pack_linears(nn.Sequential(nn.Linear(32, 32))) == 0


@pytest.mark.skipif(kernels() is None and not HAS_BF16, reason="nothing is packed here")
async def test_a_packed_model_holds_no_file_open(tmp_path: Path) -> None:
    """Its weights would be counted twice, and a file that changes would change the model."""
    build_model("llama", tmp_path)
    served = backend.TorchBackend(tmp_path, dtype="bfloat16", max_model_len=64, num_gpu_blocks=64)
    await served.load()
    mapped = {file.path for file in psutil.Process().memory_maps()}
    assert mapped and not any(path.startswith(str(tmp_path)) for path in mapped)
