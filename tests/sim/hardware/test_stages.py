"""Layers over stages: nothing is lost, the split is vLLM's, each stage has its own memory."""

import json
from pathlib import Path

import pytest

from sundog.actors.core.config import ConfigError
from sundog.sim.hardware.gpu import load_gpu
from sundog.sim.hardware.memory import layers_of_stages, stages_of
from sundog.sim.hardware.model import load_model, shape_of
from sundog.sim.target import Target
from tests.sim.hardware.params import num_params


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "expected"),
    [
        (32, 2, [16, 16]),
        (61, 2, [31, 30]),
        (61, 4, [15, 15, 16, 15]),
        (62, 4, [15, 16, 16, 15]),
        (63, 4, [16, 16, 16, 15]),
        (5, 5, [1, 1, 1, 1, 1]),
        (7, 1, [7]),
    ],
)
def test_layers_are_split_as_vllm_splits_them(num_layers: int, num_stages: int, expected: list[int]) -> None:
    """What `get_pp_indices` of vLLM 0.32 gives: the last stage never has more, the first one last of all."""
    assert layers_of_stages(num_layers, num_stages) == expected


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "deepseek-v3", "gemma-3-27b", "gpt-oss-20b", "qwen3-30b-a3b"]
)
@pytest.mark.parametrize("num_stages", [1, 2, 3, 7])
def test_stages_together_are_the_model(name: str, num_stages: int) -> None:
    """Parameters, layers in order, and keys and values; a tied table is there twice."""
    model = load_model(name)
    stages = stages_of(model, num_stages)
    twice = model.embedding_params if model.tied_embeddings and num_stages > 1 else 0
    assert sum(num_params(stage) for stage in stages) == num_params(model) + twice
    assert sum(stage.kv_bytes_per_token() for stage in stages) == model.kv_bytes_per_token()
    assert [stage.has_embedding for stage in stages] == [True] + [False] * (num_stages - 1)
    assert [stage.has_head for stage in stages] == [False] * (num_stages - 1) + [True]


def test_the_first_stage_has_the_first_layers() -> None:
    """DeepSeek-V3 begins with three dense layers: all on the first of four stages."""
    dense = [
        sum(n for layer, n in s.layers if layer.mlp.num_experts == 1)
        for s in stages_of(load_model("deepseek-v3"), 4)
    ]
    assert dense == [3, 0, 0, 0]


def test_layers_that_alternate_are_split_in_order() -> None:
    """Four layers of two kinds in turn: each of two stages has one of each."""
    config = json.loads(Path("sim/hardware/models/gpt-oss-20b.json").read_text())
    config |= {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
    stages = stages_of(shape_of(json.dumps(config), "four"), 2)
    assert [[count for _, count in stage.layers] for stage in stages] == [[1, 1], [1, 1]]


def test_more_stages_than_layers_are_refused() -> None:
    """With both numbers."""
    with pytest.raises(ConfigError, match=r"pipeline_parallel_size is 33, and llama-3.1-8b has 32 layers"):
        stages_of(load_model("llama-3.1-8b"), 33)


def test_blocks_are_those_of_the_stage_with_the_least_room() -> None:
    """The last, with head and logits, or the first; each alone would have at least as many."""
    target = Target(load_model("llama-3.1-70b"), load_gpu("h100"), 4, pipeline_parallel_size=2)
    blocks = target.capacity(16, 8192, 1024).num_blocks
    alone = [
        Target(stage, load_gpu("h100"), 4).capacity(16, 8192, 1024).num_blocks
        for stage in stages_of(target.model, 2)
    ]
    assert blocks == min(alone) < max(alone)
    assert blocks > 2 * Target(target.model, load_gpu("h100"), 4).capacity(16, 8192, 1024).num_blocks
