"""Weights of 8 and 4 bits: kernels equal the dequantised computation, for a layer and a whole model."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from sundog.actors.core.config import ConfigError
from sundog.runtime.engine.backend import TorchBackend
from sundog.runtime.model.model import Model
from sundog.runtime.native import few_bits
from sundog.runtime.native.few_bits import (
    BITS,
    GROUP,
    HEAD_BITS,
    FewBitsLinear,
    multiplied_out,
    whole_numbers,
)
from sundog.runtime.native.library import open_library
from sundog.runtime.step.step import Step
from tests.runtime.driver import Driver
from tests.runtime.models import COMMON, random_prompt
from tests.runtime.variants import EACH_VARIANT, RUNNABLE, needs_kernels

WIDE = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}


def rounded_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers [N, I] of 8 bits that rows become, and their units [N, G]."""
    x_NGi = x.float().view(len(x), -1, GROUP)
    largest_NG = x_NGi.abs().amax(-1)
    to_unit_NG = torch.where(largest_NG > 1e-30, torch.tensor(127.0) / largest_NG, 0)
    return (x_NGi * to_unit_NG[..., None]).round().flatten(1), largest_NG / 127


def product(linear: nn.Linear, bits: int, x: Tensor) -> Tensor:
    """The layer's answer in bf16: each group's whole numbers multiplied exactly, and added up in float."""
    numbers_OI, scale_OG = whole_numbers(linear.weight, bits)
    inputs_NI, unit_NG = rounded_rows(x)
    out_NO = torch.zeros(len(x), len(numbers_OI), dtype=torch.float32)
    for g in range(scale_OG.shape[1]):
        group = slice(g * GROUP, (g + 1) * GROUP)
        exact_NO = inputs_NI[:, group].double() @ numbers_OI[:, group].double().T
        times_NO = unit_NG[:, g, None] * scale_OG[:, g]
        out_NO = (exact_NO * times_NO.double() + out_NO.double()).float()  # rounded once, as `fma` does
    return (out_NO if linear.bias is None else out_NO + linear.bias.float()).bfloat16()


@needs_kernels
@pytest.mark.parametrize("variant", EACH_VARIANT)
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("num_in", "num_out", "rows"), [(128, 64, 1), (384, 200, 9), (256, 70, 530)])
def test_a_layer_multiplies_whole_numbers_exactly(
    variant: str, bits: int, num_in: int, num_out: int, rows: int
) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(num_in, num_out, bias=rows > 1).bfloat16().requires_grad_(False)
    linear.weight[1] = 0  # a group without a scale
    x = torch.randn(rows, num_in).bfloat16()
    assert torch.equal(
        FewBitsLinear.quantised(linear, bits, open_library(variant))(x), product(linear, bits, x)
    )


@needs_kernels
@pytest.mark.parametrize("variant", EACH_VARIANT)
@pytest.mark.parametrize("bits", [8, 4])
def test_the_largest_numbers_of_either_sign_saturate_nothing(variant: str, bits: int) -> None:
    linear = nn.Linear(128, 64, bias=False).bfloat16().requires_grad_(False)
    linear.weight[:] = torch.where(torch.arange(64)[:, None] % 2 == 0, 1.0, -1.0)
    linear.weight[-1, ::2] = 1.0
    x = torch.ones(7, 128).bfloat16()
    x[1::2] = -1
    x[-1, ::2] = -1
    found = FewBitsLinear.quantised(linear, bits, open_library(variant))(x)
    assert torch.equal(found, x @ linear.weight.T)


@needs_kernels
@pytest.mark.parametrize(("bits", "most"), [(8, 0.012), (4, 0.11)])
def test_eight_bits_of_rows_add_little_to_what_bits_of_weights_cost(bits: int, most: float) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(1024, 512, bias=False).bfloat16().requires_grad_(False)
    x = torch.randn(32, 1024).bfloat16()
    exact = x.float() @ linear.weight.float().T
    off = FewBitsLinear.quantised(linear, bits, open_library(RUNNABLE[0]))(x).float() - exact
    assert off.norm() < most * exact.norm()


@needs_kernels
@pytest.mark.parametrize("bits", [8, 4])
def test_a_row_is_the_same_to_the_bit_beside_any_others_and_on_any_cpu(bits: int) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(384, 200, bias=False).bfloat16().requires_grad_(False)
    x = (torch.randn(530, 384) * torch.logspace(-20, 20, 530)[:, None]).bfloat16()
    x[5] = 0
    found = [FewBitsLinear.quantised(linear, bits, open_library(variant)) for variant in RUNNABLE]
    expected = found[0](x)
    for layer in found:
        for first, end in ((0, 1), (3, 5), (5, 9), (0, 17), (40, 73), (0, 530)):
            assert torch.equal(layer(x[first:end]), expected[first:end])


@needs_kernels
@pytest.mark.parametrize("variant", EACH_VARIANT)
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_what_is_no_number_stays_none_and_in_its_row(variant: str, rows: int, odd: float) -> None:
    linear = nn.Linear(256, 64, bias=False).bfloat16().requires_grad_(False)
    x = torch.ones(rows, 256).bfloat16()
    x[-1, 130] = odd
    found = FewBitsLinear.quantised(linear, 8, open_library(variant))(x)
    assert found[-1].isnan().all() and found[:-1].isfinite().all()


@pytest.mark.parametrize("bits", [8, 4])
def test_no_weight_is_further_off_than_half_a_step(bits: int) -> None:
    torch.manual_seed(0)
    weight = torch.randn(64, 256)
    steps = weight.view(64, 2, 128).abs().amax(-1) / (2 ** (bits - 1) - 1)
    off = (multiplied_out(weight, bits) - weight).view(64, 2, 128).abs().amax(-1)
    assert (off <= steps * 0.5001).all()


def save(folder: Path) -> nn.Module:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **{**COMMON, **WIDE})).bfloat16()
    model.save_pretrained(folder)
    return model


async def prompt_logits(folder: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> tuple[Tensor, Model]:
    """The logits behind a prompt in two chunks."""
    backend = TorchBackend(folder, max_model_len=128, num_gpu_blocks=60, block_size=4, quantization=method)
    await backend.load()
    rows: list[Tensor] = []
    whole = Model.logits

    def logits(self: Model, step: Step) -> Tensor:
        rows.append(whole(self, step))
        return rows[-1]

    with monkeypatch.context() as patch:
        patch.setattr(Model, "logits", logits)
        driver = Driver(backend, num_blocks=60)
        driver.submit("a", random_prompt(1, 20))
        await driver.run(1)
    assert backend._loaded is not None
    return rows[-1][-1].float(), backend._loaded.model


@pytest.mark.parametrize("method", BITS)
@pytest.mark.parametrize("has_kernels", [False, True])
async def test_a_quantised_model_answers_as_its_weights_multiplied_out(
    method: str, has_kernels: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a whole decoder on rows of 8 bits where there are kernels, by torch in bf16 where there are none."""
    if has_kernels and not RUNNABLE:
        pytest.skip("this CPU runs none of the kernels")
    exact = copy.deepcopy(save(tmp_path)).float()
    for layer in exact.modules():
        if type(layer) is nn.Linear:
            bits = HEAD_BITS if layer is exact.lm_head else BITS[method]
            layer.weight = nn.Parameter(multiplied_out(layer.weight.detach(), bits), requires_grad=False)
    if not has_kernels:
        monkeypatch.setattr(few_bits, "kernels", lambda: None)
    found, model = await prompt_logits(tmp_path, monkeypatch, method)
    assert (model._decoder is not None) or not has_kernels
    with torch.inference_mode():
        expected = exact(torch.tensor([random_prompt(1, 20)])).logits[0, -1]
    assert (found - expected).norm() < (0.06 if has_kernels else 0.03) * expected.norm()


async def test_weights_in_float32_are_not_quantised(tmp_path: Path) -> None:
    save(tmp_path)
    with pytest.raises(
        ConfigError, match=r"--quantization int8 needs weights in bfloat16 .*--dtype bfloat16"
    ):
        await TorchBackend(tmp_path, max_model_len=64, dtype="float32", quantization="int8").load()
