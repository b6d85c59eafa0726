"""A model that the whole-decoder kernels do not support: `sundog serve` logs the reason once."""

import shutil
from pathlib import Path

import httpx
import pytest

pytest.importorskip("torch", reason="the engine extra is not installed")

from sundog.runtime.serve import EMBEDDED_MODEL
from tests.live import live
from tests.runtime.models import build_model
from tests.runtime.variants import needs_kernels

pytestmark = needs_kernels
REPLICAS, RANKS = ("--replicas", "2"), ("--tensor-parallel-size", "2")
SHARED = "2 ranks share it, and kernels for whole decoders know no sums over ranks"
SAID = ("AMX", "AVX-512 with bf16", "AVX-512", "AVX2")
COHERE = "Cohere2LayerNorm is not a root mean square norm"


@pytest.mark.long(keep=2, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize(
    ("architecture", "options", "why"),
    [
        ("llama", REPLICAS, None),
        ("llama", (*REPLICAS, *RANKS), SHARED),
        ("cohere2", (), COHERE),
        ("cohere2", REPLICAS, COHERE),
        ("cohere2", (*REPLICAS, "--in-process"), COHERE),
        ("cohere2", RANKS, SHARED),
    ],
)
def test_a_model_that_is_computed_layer_by_layer_is_said_once(
    tmp_path: Path, architecture: str, options: tuple[str, ...], why: str | None
) -> None:
    """At the start, however many processes compute it; of a model that kernels compute nothing is said."""
    build_model(architecture, tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(EMBEDDED_MODEL / name, tmp_path)
    with live("sundog", "serve", str(tmp_path), "--port", "0", "--dtype", "float32", *options) as server:
        assert server.complete([5, 6, 7], max_tokens=2).status_code == 200
        info = httpx.get(f"{server.url}/server_info").json()
        assert info["dtype"] == "float32" and info["attention"].startswith("compiled kernels")
        is_whole = why is None
        assert (info["steps"] == "one compiled call") == is_whole
        assert (info["why_not_whole"] is None) == is_whole
        assert server.stop() == 0
        assert info["instructions"] in SAID and info["faster"] is None
    says = f"float32 by {info['instructions']}, a step is {info['steps']}"
    assert any(says in line for line in server.said)
    said = [line.strip() for line in server.said if "layer by layer" in line]
    assert said == ([] if why is None else [f"{architecture} is computed layer by layer: {why}"])
