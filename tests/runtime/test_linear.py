"""Packed linear layers compute what plain ones do."""

import copy
from pathlib import Path

import psutil
import pytest
import torch
from torch import Tensor, nn

from runtime.engine import backend, model_loader
from runtime.model.loader import load_model
from runtime.model.model import answers_as, probe_layers, probe_logits
from runtime.native.linear import PackedLinear, PartOfProduct, noted_inputs, pack_linears
from tests.runtime.models import ARCHITECTURES, build_model

pytestmark = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU does not compute in bf16"
)


class Block(nn.Module):
    """Three layers of one input, a fourth of another, and one input that changes in between."""

    def __init__(self, *, bias: bool, in_place: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(48, n, bias=bias) for n in (64, 128, 32))
        self.d = nn.Linear(32, 16)
        self._in_place = in_place

    def forward(self, x: Tensor) -> Tensor:
        first = self.a(x)
        if self._in_place:
            x.mul_(2)
        return torch.cat((first, self.b(x), self.d(self.c(x))), -1)


def merged(model: nn.Module, x: Tensor) -> nn.Module:
    twin = copy.deepcopy(model)
    with noted_inputs(twin) as together, torch.inference_mode():
        twin(x.clone())
    pack_linears(twin, together)
    return twin


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 9])
def test_packed_is_plain_within_rounding(rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 32, bias=bias)).bfloat16().requires_grad_(False)
    x = torch.randn(1, rows, 48, dtype=torch.bfloat16)
    plain = model(x)
    assert pack_linears(model) == 1
    torch.testing.assert_close(model(x), plain, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 9])
def test_layers_of_one_input_are_one_product_with_the_same_bits(rows: int, bias: bool) -> None:
    """Step after step, with other inputs; and a layer of another input stays by itself."""
    torch.manual_seed(0)
    model = Block(bias=bias).bfloat16().requires_grad_(False)
    inputs = torch.randn(3, 1, rows, 48, dtype=torch.bfloat16)
    twin = merged(model, inputs[0])
    pack_linears(model)
    kinds = [type(layer) for layer in (twin.a, twin.b, twin.c, twin.d)]
    assert kinds == [PartOfProduct, PartOfProduct, PartOfProduct, PackedLinear]
    for x in inputs:
        assert torch.equal(twin(x), model(x))


def test_a_part_asked_out_of_turn_gives_its_own_answer() -> None:
    """Another order of calls, or a call that does not come, costs time and changes nothing."""
    torch.manual_seed(0)
    model = Block(bias=True).bfloat16().requires_grad_(False)
    x, y = torch.randn(2, 1, 4, 48, dtype=torch.bfloat16)
    twin = merged(model, x)
    pack_linears(model)
    for layer, given in (("b", x), ("a", y), ("a", x), ("a", x), ("c", x), ("b", y), ("a", x)):
        assert torch.equal(getattr(twin, layer)(given), getattr(model, layer)(given))


def test_an_input_that_changes_between_two_layers_is_not_shared() -> None:
    torch.manual_seed(0)
    model = Block(bias=False, in_place=True).bfloat16().requires_grad_(False)
    x = torch.randn(1, 4, 48, dtype=torch.bfloat16)
    twin = merged(model, x)
    assert type(twin.a) is PackedLinear
    pack_linears(model)
    assert torch.equal(twin(x.clone()), model(x.clone()))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_answers_merged_as_plain(architecture: str, tmp_path: Path) -> None:
    build_model(architecture, tmp_path)
    model = load_model(tmp_path, dtype="bfloat16")
    with noted_inputs(model) as together:
        probe_layers(model)
    expected = probe_logits(model)
    pack_linears(model, together)
    assert answers_as(model, expected)


async def test_a_model_that_merging_changes_is_served_unmerged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is loaded again and said in one line."""
    build_model("llama", tmp_path, num_key_value_heads=4)
    seen: list[nn.Module] = []

    def never(model: nn.Module, expected: Tensor) -> bool:
        seen.append(model)
        return False

    monkeypatch.setattr(model_loader, "answers_as", never)
    served = backend.TorchBackend(tmp_path, dtype="bfloat16", max_model_len=64, num_gpu_blocks=64)
    await served.load()
    assert any(isinstance(module, PartOfProduct) for module in seen[0].modules())
    assert "not merged" in caplog.text


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
