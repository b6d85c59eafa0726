"""Public records, fetched and converted, can be read by `sundog validate`."""

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sundog.sim.validation.records import find_servers
from tools.public_records import PUBLIC, NotConverted, PublicLog, fetched, main, of_bench

META = {
    "vllm_version": "0.28.0",
    "engine_kwargs": {
        "model": "/data/model/Qwen3-32B",
        "tensor_parallel_size": 2,
        "max_num_seqs": 128,
        "max_num_batched_tokens": 2048,
        "dtype": "bfloat16",
    },
    "kv_cache": {"num_gpu_blocks": 28884, "gpu_memory_utilization": 0.92},
}
RESULT = {
    "model_id": "Qwen/Qwen3-8B",
    "completed": 100,
    "failed": 0,
    "duration": 40.0,
    "total_input_tokens": 102_400,
    "total_output_tokens": 12_800,
    "request_rate": 2.5,
    "max_concurrency": 16,
    "mean_ttft_ms": 60.5,
    "median_ttft_ms": 55.0,
    "p99_ttft_ms": 190.0,
    "mean_tpot_ms": 9.5,
    "median_tpot_ms": 9.4,
    "p99_tpot_ms": 11.0,
    "mean_itl_ms": 9.5,
}
SERVER = ("--gpu", "h100", "--max-num-seqs", "256", "--max-num-batched-tokens", "8192")


@pytest.fixture
def published(tmp_path: Path) -> PublicLog:
    """A log as its author keeps it, with a path of a disk as the model."""
    there = tmp_path / "there"
    there.mkdir()
    rows = [
        {"input_toks": 100, "output_toks": 11, "queued_ts": 5.0 + n, "first_token_ts": 5.5 + n}
        | {"last_token_ts": 6.0 + n}
        for n in range(4)
    ]
    (there / "meta.json").write_text(json.dumps(META))
    (there / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return PublicLog("RTXPRO6000", "Qwen/Qwen3-32B", there.as_uri())


def test_a_log_is_fetched_once_and_read_by_validate(published: PublicLog, tmp_path: Path) -> None:
    """By hand: first tokens come after half a second, ten more in another one: 50 ms each."""
    place = fetched(published, tmp_path / "here")
    (server,) = find_servers(tmp_path / "here")
    assert server.name == "RTXPRO6000_Qwen3-32B" == place.name and server.model == "qwen3-32b"
    assert (server.tensor_parallel_size, server.num_gpu_blocks, len(server.requests)) == (2, 28884, 4)
    figures = server.stages[0].figures
    assert figures["ttft mean"] == pytest.approx(0.5) and figures["tpot mean"] == pytest.approx(0.05)
    moved = replace(published, url="file:///nowhere")
    assert fetched(moved, tmp_path / "here") == place
    with pytest.raises(NotConverted, match="nowhere"):
        fetched(moved, tmp_path / "elsewhere")
    assert gzip.decompress((place / "requests.jsonl.gz").read_bytes()).count(b"\n") == 4


def test_every_public_log_is_of_a_model_and_a_gpu_that_are_known() -> None:
    from sundog.sim.hardware.gpu import load_gpu
    from sundog.sim.hardware.model import load_model

    assert len({log.name for log in PUBLIC}) == len(PUBLIC) >= 4
    for log in PUBLIC:
        assert load_model(log.model).name and load_gpu(log.gpu).name
        assert log.url.startswith("https://raw.githubusercontent.com/") and log.url.endswith("/vllm")


def test_a_result_of_vllm_bench_serve_is_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: 100 requests in 40 s are 2.5 a second, of 1,024 tokens, with answers of 128."""
    (file := tmp_path / "q8.json").write_text(json.dumps(RESULT))
    assert main(["convert", str(tmp_path / "here"), str(file), *SERVER, "--engine-version", "0.23"]) == 0
    (server,) = find_servers(tmp_path / "here")
    assert str(tmp_path / "here" / "q8.server.toml") in capsys.readouterr().out
    assert {(row.num_prompt_tokens, row.num_output_tokens) for row in server.requests} == {(1024, 128)}
    assert len(server.requests) == 100 and server.max_concurrency == 16 and server.model == "qwen3-8b"
    figures: dict[str, Any] = dict(server.stages[0].figures)
    assert figures.pop("requests_per_s", 2.5) == 2.5
    assert figures["ttft p50"] == 0.055 and figures["tpot p99"] == 0.011 and "e2e mean" not in figures


def test_requests_at_once_have_no_rate(tmp_path: Path) -> None:
    """All 100 arrive within a tenth of a millisecond, and 16 clients take them in turn."""
    text = of_bench({**RESULT, "request_rate": math.inf}, "x.json", {"model": "qwen3-8b", "gpu": "h100"})
    text = text.replace("\n\n[load]", "\nmax_num_seqs = 256\nmax_num_batched_tokens = 8192\n\n[load]", 1)
    (tmp_path / "x.server.toml").write_text(text)
    (server,) = find_servers(tmp_path)
    assert len(server.requests) == 100 and server.requests[-1].arrival_s <= 1.1e-4


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"completed": None}, "is missing"),
        ({"completed": 1}, "1 requests were answered"),
        ({"failed": 9}, "9 failed"),
        ({name: None for name in RESULT if name.endswith("_ms")}, "no latency"),
    ],
)
def test_what_is_no_measurement_is_refused(changes: dict[str, Any], reason: str) -> None:
    changed = {name: value for name, value in {**RESULT, **changes}.items() if value is not None}
    with pytest.raises(NotConverted, match=reason):
        of_bench(changed, "x.json", {})


def test_one_bad_file_does_not_keep_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (good := tmp_path / "good.json").write_text(json.dumps(RESULT))
    (bad := tmp_path / "bad.json").write_text("[]")
    assert main(["convert", str(tmp_path / "here"), str(bad), str(good), *SERVER]) == 2
    told = capsys.readouterr()
    assert "good.server.toml" in told.out and "bad.json is no result" in told.err
