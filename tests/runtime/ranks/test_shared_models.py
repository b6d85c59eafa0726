"""A model shared by two processes gives the same logits up to rounding, and the same tokens."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Never

import numpy as np
import pytest

pytest.importorskip("torch", reason="the engine extra is not installed")

import torch

from sundog.actors.config import ConfigError
from sundog.runtime.ranks import sharded
from tests import warm
from tests.runtime.models import build_model
from tests.runtime.ranks.together import COUNT, Answered, Case, answered, cases

NAMES = ("llama", "qwen3", "qwen3_moe")
MORE = ("qwen2", "mistral", "mixtral", "gemma3_text", "phi3", "olmo2", "glm4", "gpt_neox", "deepseek_v3")
"""Of the others those whose plans have further styles of layers."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    torch.set_num_threads(1)
    made = [tmp_path_factory.mktemp(name) for name in NAMES]
    for name, folder in zip(NAMES, made, strict=True):
        build_model(name, folder)
    return [str(folder) for folder in made]


@pytest.fixture(scope="module")
def shared(folders: list[str]) -> dict[Case, Answered]:
    return by_two_ranks(folders)


def by_two_ranks(folders: list[str]) -> dict[Case, Answered]:
    """What two ranks answer, by case."""
    done = warm.run("tests.runtime.ranks.together", *folders)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {case: Answered(**line) for case, line in zip(cases(folders), lines, strict=True)}


@pytest.mark.long(keep=2, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_blocks", [200, 24])
def test_two_ranks_answer_as_one_does(
    folders: list[str], shared: dict[Case, Answered], name: str, num_blocks: int
) -> None:
    """Chunked, mixed, on cached prefixes, and preempted where blocks are few."""
    case = Case(folders[NAMES.index(name)], num_blocks=num_blocks)
    alone, both = answered(case), shared[case]
    assert both.tokens == alone.tokens
    assert both.num_hits and (num_blocks == 200 or both.num_preempted)
    assert (both.num_hits, both.num_preempted) == (alone.num_hits, alone.num_preempted)
    for ours, theirs in zip(both.logits, alone.logits, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_there", [False, True])
def test_a_build_for_gpus_shares_a_model_on_the_cpu_if_no_gpu_is_there(
    monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    """The default build of torch on Linux is one; beside a GPU, transformers would share on that."""

    class Loading(Exception):
        """Stands for all that follows."""

    def accelerator(check_available: bool = False) -> torch.device | None:
        return torch.device("cuda") if is_there or not check_available else None

    def load(*_given: object, **_named: object) -> Never:
        raise Loading

    monkeypatch.setattr(torch.accelerator, "current_accelerator", accelerator)
    monkeypatch.setattr(sharded, "load_model", load)
    group: Any = SimpleNamespace(rank=SimpleNamespace(count=2), device=torch.device("cpu"))
    with pytest.raises(ConfigError if is_there else Loading, match="--device cuda" if is_there else None):
        sharded.load_share(Path("model"), group, dtype="float32", max_model_len=64)


def test_each_rank_keeps_the_keys_of_its_own_heads(folders: list[str], shared: dict[Case, Answered]) -> None:
    """Half of them, in a pool of its own with as many blocks."""
    assert answered(Case(folders[0])).num_key_heads == 2
    assert {each.num_key_heads for each in shared.values()} == {2 // COUNT}


@pytest.mark.parametrize(
    ("sampling", "num_blocks", "ahead"),
    [("drawn", 200, False), ("remembering", 24, False), ("drawn", 200, True)],
)
def test_what_rank_0_draws_is_what_all_go_on_with(
    folders: list[str], shared: dict[Case, Answered], sampling: str, num_blocks: int, ahead: bool
) -> None:
    """By seeds, with penalties and log probabilities, and with steps launched ahead."""
    case = Case(folders[0], sampling, num_blocks, ahead)
    alone, both = answered(case), shared[case]
    assert both.tokens == alone.tokens
    assert set(both.logprobs) == set(alone.logprobs) and (sampling == "drawn" or both.logprobs)
    for name, ours in both.logprobs.items():
        np.testing.assert_allclose(ours, alone.logprobs[name], atol=1e-4)


@pytest.mark.long(rare=True, reason="builds every model that can be shared")
def test_models_of_all_kinds_of_plans_answer_as_alone(tmp_path: Path) -> None:
    """Biases, windows, fused and gathered projections, tied heads, experts, latent attention."""
    for name in MORE:
        build_model(name, tmp_path / name)
    for case, both in by_two_ranks([str(tmp_path / name) for name in MORE]).items():
        assert both.tokens == answered(case).tokens, case
