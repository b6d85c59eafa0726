"""Mixtures of experts computed as a whole: equality with the library's modules."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from sundog.runtime.engine.backend import TorchBackend
from sundog.runtime.model.model import Model
from sundog.runtime.native.experts import SplitExperts
from sundog.runtime.native.few_bits import FewBitsLinear
from sundog.runtime.step.step import Step
from tests.runtime.driver import Driver
from tests.runtime.models import LATENT, generate, random_prompt
from tests.runtime.test_native_decoder import both, build_wide, load, run_a_few
from tests.runtime.variants import needs_kernels

__all__ = ["both"]  # a fixture
pytestmark = needs_kernels
FEW = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
DEEP = {"head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
GROUPS = {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1}
FAMILIES: dict[str, dict[str, object]] = {
    "qwen2_moe": {**FEW, "shared_expert_intermediate_size": 64},
    "olmoe": FEW,
    "granitemoe": {"num_local_experts": 4, "num_experts_per_tok": 2, "residual_multiplier": 0.5},
    "flex_olmo": FEW,
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32},
    "glm4_moe": {**DEEP, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    "dots1": {**DEEP, **GROUPS, "n_shared_experts": 1, "norm_topk_prob": False, "routed_scaling_factor": 2.5},
    "deepseek_v2": {**DEEP, **GROUPS, **LATENT, "topk_method": "group_limited_greedy", "n_shared_experts": 1},
    "minimax_m2": {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    "hy_v3": {**FEW, "head_dim": 16, "num_shared_experts": 1, "router_scaling_factor": 2.5},
}
"""Shared experts, dense first layers, routers of all kinds; test_native_decoder.py has the others."""


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("architecture", FAMILIES)
async def test_a_mixture_gives_the_logits_of_its_layers(
    both: list[float], architecture: str, tmp_path: Path
) -> None:
    """In float32, where roundings choose no other experts."""
    build_wide(architecture, tmp_path, **FAMILIES[architecture])
    await run_a_few(tmp_path, "float32")
    assert max(both) < 3e-6


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("architecture", ["qwen2_moe", "glm4_moe", "dots1", "deepseek_v2"])
async def test_a_mixture_in_bf16_is_apart_by_roundings(
    both: list[float], architecture: str, tmp_path: Path
) -> None:
    """A step in which rounding chose another expert may be further apart: not the middle one."""
    build_wide(architecture, tmp_path, **FAMILIES[architecture])
    await run_a_few(tmp_path, "bfloat16")
    assert sorted(both)[len(both) // 2] < 0.02


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_a_row_of_a_mixture_is_the_same_beside_any_others(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit, however many rows its experts have, by one thread or two."""
    build_wide("qwen2_moe", tmp_path, **FAMILIES["qwen2_moe"])
    rows: list[Tensor] = []
    whole = Model.logits

    def logits(self: Model, step: Step) -> Tensor:
        found = whole(self, step)
        rows.append(found[step.request_ids.index("a")].clone())
        return found

    monkeypatch.setattr(Model, "logits", logits)
    before = torch.get_num_threads()
    for threads, num_others in ((1, 0), (2, 11)):
        torch.set_num_threads(threads)
        backend, model = await load(tmp_path, dtype)
        assert model.is_whole
        driver = Driver(backend)
        driver.submit("a", random_prompt(1, 12))
        await driver.step()
        for other in range(num_others):
            driver.submit(f"x{other}", random_prompt(other, 1))
        for _ in range(6):
            await driver.step()
    torch.set_num_threads(before)
    alone, among = rows[:7], rows[7:]
    assert all(torch.equal(a, b) for a, b in zip(alone, among, strict=True))


@pytest.mark.parametrize(
    ("architecture", "settings", "why"),
    [
        ("phimoe", {"num_local_experts": 4}, "chooses by a rule of its own"),
        ("afmoe", {**FEW, "head_dim": 16, "num_shared_experts": 1}, "of a kind of its own"),
    ],
)
async def test_a_router_of_another_rule_is_left_to_the_library(
    architecture: str, settings: dict[str, object], why: str, tmp_path: Path
) -> None:
    build_wide(architecture, tmp_path, **settings)
    _, model = await load(tmp_path, "float32")
    assert not model.is_whole and why in str(model.why_by_layers)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("architecture", "settings", "num_mixtures"),
    [
        ("mixtral", {"num_local_experts": 4, "head_dim": 32}, 3),
        ("deepseek_v3", {"moe_intermediate_size": 128, "kv_lora_rank": 256}, 2),
    ],
)
async def test_a_mixture_of_few_bits_has_its_experts_in_few_bits(
    both: list[float], architecture: str, settings: dict[str, object], num_mixtures: int, tmp_path: Path
) -> None:
    """And computes them as its layers do; of latents too, of which one is wider than the state."""
    build_wide(architecture, tmp_path, hidden_size=128, intermediate_size=128, **settings)
    backend = TorchBackend(
        tmp_path, dtype="bfloat16", max_model_len=128, num_gpu_blocks=200, block_size=4, quantization="int8"
    )
    await backend.load()
    assert backend._loaded is not None
    model = backend._loaded.model
    experts = [module for module in model._model.modules() if isinstance(module, SplitExperts)]
    assert model.is_whole and len(experts) == num_mixtures
    assert all(isinstance(linear, FewBitsLinear) for each in experts for linear in (*each.gate, *each.down))
    driver = Driver(backend)
    driver.submit("a", random_prompt(3, 21))
    await driver.run(6)
    assert sorted(both)[len(both) // 2] < 0.02


async def test_split_experts_answer_as_the_librarys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layer by layer too, where a router is of another rule."""
    from transformers import AutoModelForCausalLM

    build_wide("phimoe", tmp_path, num_local_experts=4)
    backend, model = await load(tmp_path, "float32")
    assert any(isinstance(module, SplitExperts) for module in model._model.modules())
    driver = Driver(backend)
    prompt = random_prompt(1, 12)
    driver.submit("a", prompt)
    library = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    library.generation_config.eos_token_id = None
    assert (await driver.run(12))["a"] == generate(library, prompt, 12)
