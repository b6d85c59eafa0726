"""KV blocks in the host's memory by the command line and by Python: `--kv-offloading-size GIB`."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

import sundog
from sundog.sim.trace.jsonl_rows import write_trace
from sundog.sim.trace.record import TraceRequest
from tests import warm
from tests.live import EMULATED, START_S, live

TOKEN_BYTES = 131072
"""Llama 3.1 8B's, in 16 bits."""
LOADED = 800 - 13 * 16
SMALL = ("--num-gpu-blocks", "300", "--max-model-len", "4096")
TIER = ("--kv-offloading-size", "4")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Twice ten prompts, of which the GPU holds but one or two."""
    rows = [
        TraceRequest(f"r{number}", 5.0 * number, 3201, 8, hash_ids=tuple(range(first, first + 200)))
        for number, first in enumerate([*range(0, 2000, 200)] * 2)
    ]
    rows = [row._replace(hash_block_tokens=16) for row in rows]
    write_trace(path := str(tmp_path / "trace.jsonl"), rows, provenance="test", hash_block_tokens=16)
    return path


def run(*arguments: str) -> Any:
    return warm.run("sundog", "replay", *arguments)


def test_hits_are_shown_by_tier_and_the_run_is_played_again(trace: str, tmp_path: Path) -> None:
    """In JSON, in the table, in Python; its config.toml has the options."""
    out = tmp_path / "run"
    done = run(trace, *SMALL, *TIER, "--json", "--out", str(out))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["host"] == {"hit_tokens": 32000, "hit_rate": 32000 / 64020, "reloaded_tokens": 0}
    assert json.loads(run("--config", str(out / "config.toml"), "--json").stdout) == found
    assert "0 on the GPU, 32,000 in the host's memory (50.0%)" in run(trace, *SMALL, *TIER).stdout
    plain = json.loads(run(trace, *SMALL, "--json").stdout)
    assert "host" not in plain and not plain["prefix_hit_tokens"]
    figures = sundog.replay(trace, num_gpu_blocks=300, max_model_len=4096, kv_offloading_size=4.0).figures
    assert figures == found


def test_a_load_takes_its_bytes_over_the_bandwidth(trace: str) -> None:
    """Half of the requests load 3200 tokens: of the GPU's own link, and of one that is asked for."""
    slow, quick = (
        json.loads(run(trace, *SMALL, *TIER, "--kv-offloading-gb-per-s", rate, "--json").stdout)
        for rate in ("5", "50")
    )
    assert slow["ttft_s"]["mean"] - quick["ttft_s"]["mean"] == pytest.approx(
        3200 * TOKEN_BYTES * (1 / 5e9 - 1 / 50e9) / 2, abs=1e-9
    )
    own = json.loads(run(trace, *SMALL, *TIER, "--json").stdout)
    assert own["ttft_s"] == quick["ttft_s"], "the H100 has PCIe 5"


def test_ranks_share_the_memory_and_copy_their_parts_at_once(trace: str) -> None:
    """Two ranks load in half the time; what holds 20 blocks of one rank holds 20 of two."""
    alone, shared = (
        json.loads(run(trace, *SMALL, *TIER, *more, "--json").stdout)["host"]
        for more in ((), ("--tensor-parallel-size", "2"))
    )
    assert alone == shared
    tiny = ("--kv-offloading-size", str(20 * 16 * TOKEN_BYTES / 2**30))
    for ranks in ("1", "2"):
        found = json.loads(run(trace, *SMALL, *tiny, "--tensor-parallel-size", ranks, "--json").stdout)
        assert not found["host"]["hit_tokens"], "no prompt fits, and so none is stored"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--kv-offloading-size", "-1"), "--kv-offloading-size is -1: give a number from 0"),
        (("--kv-offloading-size", "1e-6"), "kv_offloading_size is less than one KV block: give more"),
        (("--kv-offloading-size", "900000"), "more than can be simulated"),
        ((*TIER, "--kv-offloading-backend", "lmcache"), "give native"),
        ((*TIER, "--no-enable-prefix-caching"), "needs prefix caching"),
    ],
)
def test_a_tier_that_cannot_be_is_refused_in_one_line(
    trace: str, options: tuple[str, ...], words: str
) -> None:
    done = run(trace, *options)
    assert done.returncode == 2 and words in done.stderr, done.stderr


def test_a_real_engine_refuses_the_option_by_name() -> None:
    """Blocks go to the host in simulation and emulation alone."""
    done = warm.run("sundog", "serve", *TIER)
    assert done.returncode == 2 and "--kv-offloading-size is an option of `sundog emulate`" in done.stderr


def test_an_emulated_server_counts_hits_of_the_host_by_vllms_names() -> None:
    """A prompt, another that leaves the GPU 13 blocks of it, and the first again."""
    pool = ("--num-gpu-blocks", "65", "--max-model-len", "1024", "--kv-offloading-size", "1")
    with live(*EMULATED, "--time-scale", "20", "--debug", *pool) as server:
        prompts = [[number] * 801 for number in (7, 8)]
        cached = []
        for prompt in (*prompts, prompts[0]):
            usage = server.complete(prompt, max_tokens=2).json()["usage"]
            cached.append((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))
        text = httpx.get(f"{server.url}/metrics", timeout=START_S).text
        assert server.stop() == 0
    assert cached == [0, 0, 800]
    rows = re.findall(r'^(vllm:\w+)_total\{(?:.*source="(\w+)")?.*\} ([\d.e+]+)$', text, re.MULTILINE)
    found = {source or name: float(count) for name, source, count in rows}
    assert found["vllm:external_prefix_cache_hits"] == found["external_kv_transfer"] == LOADED
    assert found["vllm:prefix_cache_hits"] == found["local_cache_hit"] == 800 - LOADED
    assert found["vllm:external_prefix_cache_queries"] == 3 * 801 - (800 - LOADED)
    assert found["local_compute"] == 3 * 801 - 800
