"""Decoders computed as a whole: which models, and equality with the library's modules."""

import ctypes
from collections.abc import Iterator
from ctypes import CDLL
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from sundog.runtime.engine.backend import TorchBackend
from sundog.runtime.model import model as model_room
from sundog.runtime.model.model import Model
from sundog.runtime.native.library import open_library
from sundog.runtime.native.linear import OneDnnPacked
from sundog.runtime.native.parts import Unrecognised
from sundog.runtime.native.recognised import recognised
from sundog.runtime.step.step import Step
from tests.runtime.driver import Driver
from tests.runtime.models import (
    ARCHITECTURES,
    COMMON,
    LATENT,
    YARN,
    build_model,
    generate,
    random_prompt,
    stir_choices,
)
from tests.runtime.variants import EACH_VARIANT, RUNNABLE, needs_kernels

pytestmark = needs_kernels
MIXTURES = {"mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3"}
WHOLE = {
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "granite",
    "smollm3",
    "phi3",
    "gemma2",
    "gemma3_text",
    "olmo2",
    "glm4",
    *MIXTURES,
}
"""Of the architectures of these tests, those that the kernels compute as a whole."""
GROWING = {"original_max_position_embeddings": 64, "llama_4_scaling_beta": 0.1}
"""Queries are larger from position 64 on, which no pass at load reaches."""
APART = {"float32": 3e-6, "bfloat16": 0.02, "float16": 0.003}
# Widths such that each merged layer begins where a block of packed columns does.
WIDE = {"num_key_value_heads": 4, "intermediate_size": 192}


@pytest.fixture(params=EACH_VARIANT)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CDLL:
    """Each variant in turn, for all models that are loaded."""
    found = open_library(request.param)
    monkeypatch.setattr(model_room, "kernels", lambda: found)
    return found


def build_wide(architecture: str, folder: Path, **settings: object) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        architecture, **{**COMMON, **ARCHITECTURES.get(architecture, {}), **WIDE, **settings}
    )
    model = AutoModelForCausalLM.from_config(config)
    stir_choices(model)
    model.save_pretrained(folder)


async def load(folder: Path, dtype: str) -> tuple[TorchBackend, Model]:
    backend = TorchBackend(folder, dtype=dtype, max_model_len=128, num_gpu_blocks=200, block_size=4)
    await backend.load()
    assert backend._loaded is not None
    return backend, backend._loaded.model


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Every step computed both ways: how far apart the logits are, in their size."""
    apart: list[float] = []
    whole = Model.logits

    def logits(self: Model, step: Step) -> Tensor:
        decoder = self._decoder
        assert decoder is not None
        fast = whole(self, step)
        self._decoder = None
        slow = whole(self, step)
        self._decoder = decoder
        if len(slow):
            apart.append(float((fast.float() - slow.float()).norm() / slow.float().norm()))
        return slow

    monkeypatch.setattr(Model, "logits", logits)
    yield apart
    assert apart


@pytest.mark.long(keep=45, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize("dtype", APART)
@pytest.mark.parametrize("architecture", sorted(WHOLE))
async def test_a_whole_decoder_gives_the_logits_of_its_layers(
    library: CDLL, both: list[float], architecture: str, dtype: str, tmp_path: Path
) -> None:
    """Decodes and chunks of several requests, in every variant.

    In 16 bits a router's roundings may choose another expert in some step, but not in the middle one.
    """
    build_wide(architecture, tmp_path)
    await run_a_few(tmp_path, dtype)
    may_choose = architecture in MIXTURES and dtype != "float32"
    assert (sorted(both)[len(both) // 2] if may_choose else max(both)) < APART[dtype]


async def run_a_few(folder: Path, dtype: str) -> None:
    backend, _ = await load(folder, dtype)
    driver = Driver(backend)
    for name, length in (("a", 3), ("b", 21), ("c", 40)):
        driver.submit(name, random_prompt(length, length))
    await driver.run(6)


@pytest.mark.long(keep=8, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize("dtype", APART)
@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("granite", {"residual_multiplier": 0.22, "embedding_multiplier": 12.0, "logits_scaling": 8.0}),
        ("gemma2", {"final_logit_softcapping": 5.0}),
        ("smollm3", {"no_rope_layers": [1, 0, 1]}),
        ("gemma3_text", {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
        ("youtu", LATENT),
        ("youtu", {**LATENT, "q_lora_rank": None, "rope_interleave": False}),
        ("minicpm3", {**LATENT, "scale_depth": 1.4, "scale_emb": 12.0}),
        ("deepseek_v2", {**LATENT, "first_k_dense_replace": 3}),
    ],
)
async def test_what_a_model_scales_bends_or_leaves_out_is_computed_as_a_whole(
    both: list[float], architecture: str, settings: dict[str, object], dtype: str, tmp_path: Path
) -> None:
    """Multipliers, caps on logits, layers without positions, and rotary embeddings by the kind of a layer.

    Latent attention turns halves, neighbours that part, or neighbours that stay side by side.
    """
    build_wide(architecture, tmp_path, **settings)
    await run_a_few(tmp_path, dtype)
    assert max(both) < APART[dtype]


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
async def test_which_decoders_are_computed_as_a_whole(architecture: str, tmp_path: Path) -> None:
    build_model(architecture, tmp_path)
    _, model = await load(tmp_path, "float32")
    assert (model._decoder is not None) == (architecture in WHOLE)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("dtype", APART)
@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("hunyuan_v1_dense", {"head_dim": 16}),
        ("llama", {"hidden_act": "relu"}),
        ("ministral3", {"head_dim": 16, "rope_parameters": {**YARN, **GROWING}}),
    ],
)
async def test_a_decoder_that_computes_anything_else_is_left_to_the_library(
    architecture: str, settings: dict[str, object], dtype: str, tmp_path: Path
) -> None:
    """Though its parts have the same names and shapes."""
    build_wide(architecture, tmp_path, **settings)
    _, model = await load(tmp_path, dtype)
    assert model._decoder is None


async def test_widths_that_are_no_whole_blocks_are_computed_as_a_whole(
    both: list[float], tmp_path: Path
) -> None:
    """Layers are merged only where each begins a block of packed columns: not behind 32 columns."""
    build_model("llama", tmp_path)
    await run_a_few(tmp_path, "bfloat16")
    assert max(both) < APART["bfloat16"]


class Doubled(nn.Module):
    """A layer that gives twice what the other gives."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = 2 * self.inner(x)
        return out


async def test_a_layer_of_another_kind_is_left_to_the_library(tmp_path: Path) -> None:
    """Such as one that an adapter has put in another's place; and one hooked from outside."""
    build_wide("llama", tmp_path)
    _, model = await load(tmp_path, "float32")
    library, inner, cache = open_library(RUNNABLE[0]), model._model, model.cache
    recognised(library, inner, cache, 128)
    hook = inner.model.layers[1].mlp.register_forward_hook(lambda _module, _args, out: out * 1.1)
    with pytest.raises(Unrecognised, match="layer 1 would differ"):
        recognised(library, inner, cache, 128)
    hook.remove()
    inner.model.layers[1].mlp.up_proj = Doubled(inner.model.layers[1].mlp.up_proj)
    with pytest.raises(Unrecognised, match="Doubled"):
        recognised(library, inner, cache, 128)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("architecture", ["qwen3", "deepseek_v3"])
@pytest.mark.parametrize("dtype", APART)
async def test_a_request_has_the_same_logits_alone_and_among_others(
    library: CDLL, dtype: str, architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit, decoding among up to eight others, whatever the number of threads."""
    build_wide(architecture, tmp_path)
    rows: list[Tensor] = []
    whole = Model.logits

    def logits(self: Model, step: Step) -> Tensor:
        found = whole(self, step)
        rows.append(found[step.request_ids.index("a")].clone())
        return found

    monkeypatch.setattr(Model, "logits", logits)
    before = torch.get_num_threads()
    for threads, num_others in ((1, 0), (2, 8)):
        torch.set_num_threads(threads)
        backend, _ = await load(tmp_path, dtype)
        driver = Driver(backend)
        driver.submit("a", random_prompt(1, 12))
        await driver.step()
        for other in range(num_others):
            driver.submit(f"x{other}", random_prompt(other, 1))
        for _ in range(12):
            await driver.step()
    torch.set_num_threads(before)
    alone, among = rows[:13], rows[13:]
    assert all(torch.equal(a, b) for a, b in zip(alone, among, strict=True))


async def test_positions_beyond_the_first_table_are_turned_as_the_library_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from sundog.runtime.native import decoder

    monkeypatch.setattr(decoder, "FIRST_POSITIONS", 8)
    model = build_model("llama", tmp_path)
    backend, _ = await load(tmp_path, "float32")
    driver = Driver(backend)
    prompt = random_prompt(1, 12)
    driver.submit("a", prompt)
    assert (await driver.run(20))["a"] == generate(model, prompt, 20)


@pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU does not compute in bf16"
)
@pytest.mark.parametrize(("num_in", "num_out"), [(64, 64), (128, 320), (96, 130), (1024, 64)])
def test_the_order_of_packed_weights_is_found(num_in: int, num_out: int) -> None:
    """Each block of columns lies where its number says, unless oneDNN has an order of its own."""
    torch.manual_seed(0)
    linear = nn.Linear(num_in, num_out).bfloat16().requires_grad_(False)
    owner = OneDnnPacked(linear.weight, linear.bias)  # of the memory at which the record points
    packed = owner.record
    if not (block := packed.block):
        pytest.skip(f"oneDNN orders {num_in} to {num_out} in another way")
    size = -(-num_out // block) * block * num_in
    lying = np.ctypeslib.as_array((ctypes.c_uint16 * size).from_address(packed.weight))
    columns = lying.reshape(-1, num_in // 2, block, 2).transpose(0, 2, 1, 3).reshape(-1, num_in)
    assert np.array_equal(columns[:num_out], linear.weight.view(torch.uint16).numpy())
