"""Models and sizes that cannot be served are refused when they are loaded, with one true reason."""

from pathlib import Path

import pytest

from actors.core.config import ConfigError
from runtime.backend import TorchBackend
from tests.runtime.models import build_model, build_small

OWN_ATTENTION = "its layers do not attend through a function that can be replaced"
REASONS = {
    "bloom": OWN_ATTENTION,
    "codegen": OWN_ATTENTION,
    "falcon": OWN_ATTENTION,
    "gpt_neo": OWN_ATTENTION,
    "gptj": OWN_ATTENTION,
    "mamba": OWN_ATTENTION,
    "mpt": OWN_ATTENTION,
    "stablelm": OWN_ATTENTION,
    "xglm": OWN_ATTENTION,
    "bert": "its tokens attend to later ones",
    "doge": "its layers mask attention by a rule of their own",
    "moshi": "its layers do not tell the window of 12 tokens",
    "diffllama": "layer 0 attends more than once",
    "nemotron": "its layers do not pass the step on to their attention",
    "qwen3_next": OWN_ATTENTION,
}


GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8}
HYBRID = {"layer_types": ["linear_attention", "full_attention"], "num_experts": 4, "num_experts_per_tok": 2}
SETTINGS: dict[str, dict[str, object]] = {
    "bloom": {"n_layer": 2, "n_head": 4},
    "codegen": GPT,
    "gpt_neo": {"num_layers": 2, "num_heads": 4, "attention_types": [[["global"], 2]]},
    "gptj": GPT,
    "mamba": {"state_size": 4},
    "moshi": {"sliding_window": 12, "ffn_dim": 96, "hidden_size": 64},
    "mpt": {"d_model": 64, "n_heads": 4, "n_layers": 2},
    "qwen3_next": {**HYBRID, "linear_num_key_heads": 2, "linear_num_value_heads": 2},
    "xglm": {"d_model": 64, "ffn_dim": 96, "num_layers": 2, "attention_heads": 4},
}


async def load(folder: Path, **settings: int) -> None:
    backend = TorchBackend(folder, **{"max_model_len": 64, "block_size": 4, **settings})
    await backend.load()


@pytest.mark.parametrize(("model_type", "reason"), REASONS.items())
async def test_a_model_that_a_paged_cache_cannot_serve_is_refused_by_name(
    model_type: str, reason: str, tmp_path: Path
) -> None:
    """Never by a crash, and never by a wrong answer."""
    build_small(model_type, tmp_path, **SETTINGS.get(model_type, {}))
    with pytest.raises(ConfigError, match=f"{model_type}.* is not supported: .*{reason}") as caught:
        await load(tmp_path)
    assert "\n" not in str(caught.value)


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
        ({"num_threads": 0}, "--num-threads 0"),
        ({"num_threads": 10**6}, "--num-threads 1000000: this machine has 1 to"),
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
