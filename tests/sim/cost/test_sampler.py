"""Sampler time of a step: by version of vLLM, filters and vocabulary size."""

import json
from pathlib import Path

import pytest

from sundog.actors.config.generation import GREEDY, Drawing, drawing_of, settings_in
from sundog.actors.core.config import ConfigError
from sundog.sim.cost.sampler import Sampler
from sundog.sim.hardware.gpu import load_gpu
from sundog.sim.hardware.model import load_model

H100 = load_gpu("h100")
DRAWN, TOP_P = Drawing(), Drawing(has_top_p=True)
TOP_K_TOP_P = Drawing(has_top_k=True, has_top_p=True)


def seconds(drawing: Drawing, version: str, rows: int, vocab_size: int = 131_072, gpu: str = "h100") -> float:
    return Sampler(drawing, version, vocab_size, load_gpu(gpu)).seconds(rows)


MEASURED_MS = {
    ("0.16", TOP_P): {
        (64, 131_072): 1.005,
        (128, 131_072): 2.318,
        (512, 32_768): 1.694,
        (512, 131_072): 6.15,
    },
    ("0.20", TOP_P): {
        (64, 32_768): 0.239,
        (64, 131_072): 0.459,
        (128, 131_072): 0.528,
        (512, 131_072): 2.013,
    },
    ("0.20", TOP_K_TOP_P): {(64, 32_768): 0.126, (64, 131_072): 0.311, (128, 131_072): 0.359},
    ("0.21", TOP_P): {
        (128, 32_768): 0.046,
        (64, 131_072): 0.106,
        (128, 131_072): 0.139,
        (512, 131_072): 0.372,
    },
    ("0.21", TOP_K_TOP_P): {(64, 32_768): 0.068, (64, 131_072): 0.199, (128, 131_072): 0.267},
}
"""By (rows, vocabulary), from vLLM's pull request 40376."""


@pytest.mark.parametrize(("version", "drawing"), MEASURED_MS)
def test_filters_take_what_their_authors_measured(version: str, drawing: Drawing) -> None:
    """Within a sixth; FlashInfer draws as well, and is timed without the cast and the temperature."""
    for (rows, vocab_size), measured_ms in MEASURED_MS[version, drawing].items():
        taken_s = seconds(drawing, version, rows, vocab_size)
        if version == "0.21":
            rest_s = seconds(GREEDY, version, rows, vocab_size) * 3.5 / 2
        else:
            rest_s = seconds(DRAWN, version, rows, vocab_size)
        assert (taken_s - rest_s) * 1e3 == pytest.approx(measured_ms, rel=1 / 6), (rows, vocab_size)


def test_a_newer_vllm_filters_faster_and_no_filter_is_the_fastest() -> None:
    """A sort, then a search, then a fused kernel; greedy requests need none of them."""
    sort_s, search_s, fused_s = (seconds(TOP_P, version, 96) for version in ("0.15", "0.19", "0.33"))
    assert sort_s > 2 * search_s > 4 * fused_s
    assert seconds(GREEDY, "0.15", 96) < seconds(DRAWN, "0.15", 96) < search_s
    assert seconds(GREEDY, "0.15", 96) == seconds(GREEDY, "0.33", 96)


def test_few_rows_are_sorted_until_flashinfer() -> None:
    """Triton's kernel begins at 8 rows."""
    assert seconds(TOP_P, "0.19", 7) == seconds(TOP_P, "0.16", 7)
    assert seconds(TOP_P, "0.19", 8) != seconds(TOP_P, "0.16", 8)


def test_a_sampler_grows_with_rows_and_vocabulary_and_shrinks_with_bandwidth() -> None:
    """By whatever kernel."""
    for version in ("0.15", "0.19", "0.33"):
        for drawing in (GREEDY, DRAWN, TOP_P, TOP_K_TOP_P):
            grown = [seconds(drawing, version, rows) for rows in (64, 127, 256, 1024)]
            assert grown == sorted(grown)
            assert seconds(drawing, version, 64, 32_000) < grown[0]
            assert (
                seconds(drawing, version, 64, gpu="l40s")
                > grown[0]
                > seconds(drawing, version, 64, gpu="b200")
            )


def test_settings_say_which_filters_are_on() -> None:
    """As vLLM reads them: 0 and 1 switch them off, a temperature of 0 is greedy."""
    assert drawing_of({"temperature": 0, "top_p": 0.5}) == GREEDY
    assert drawing_of({"temperature": 0.6, "top_k": 0, "top_p": 1.0}) == drawing_of({}) == DRAWN
    assert drawing_of({"top_k": 20, "top_p": 0.95}) == TOP_K_TOP_P


def test_a_folder_says_how_its_model_draws(tmp_path: Path) -> None:
    """By its generation_config.json; what a server overrides counts before it, key by key."""
    config = {"model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000, "head_dim": 16}
    (tmp_path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 512}))
    assert load_model(str(tmp_path)).drawing({}) == DRAWN
    settings = {"do_sample": True, "temperature": 0.6, "top_p": 0.9}
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    model = load_model(str(tmp_path))
    assert model.drawing({}) == TOP_P and model.drawing({"top_k": 5}) == TOP_K_TOP_P
    assert model.drawing({"temperature": 0.0}) == GREEDY
    assert load_model("llama-3.1-8b").drawing({}) == TOP_P and load_model("mixtral-8x7b").drawing({}) == DRAWN


@pytest.mark.parametrize("given", [[], {"top_p": "high"}, {"top_k": -1}, {"temperature": True}])
def test_wrong_settings_are_refused_with_their_file(given: object) -> None:
    """Before anything is priced."""
    with pytest.raises(ConfigError, match=r"^here"):
        settings_in(given, "here")


def test_a_sort_is_bound_by_multiprocessors_rather_than_by_bandwidth() -> None:
    """128 rows of Qwen's vocabulary take 2.95 ms on an H200 (LightLLM's pull request 1573), as on an H100.

    An L40S has as many operations per second, but a quarter of the bandwidth: it waits for its passes.
    """
    h100, h200, l40s = (seconds(TOP_K_TOP_P, "0.16", 128, 151_936, gpu) for gpu in ("h100", "h200", "l40s"))
    assert h200 == pytest.approx(2.946e-3, rel=0.06)
    assert h100 == pytest.approx(h200, rel=0.05)
    moved_s = 4 * 2 * 12 * 128 * 151_936 / 864e9
    assert moved_s < l40s - seconds(DRAWN, "0.16", 128, 151_936, "l40s") < 1.3 * moved_s
