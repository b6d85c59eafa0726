"""Stages, data-parallel ranks and experts through the command line: simulated, served, swept, refused."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live import EMULATED, START_S, Stream, live
from tests.sundog.test_models import TRACE, replay
from tests.sundog.test_sweep import cells

MIXTRAL = ("--model", "mixtral-8x7b", "-tp", "2")
LARGE = ("--model", "llama-3.1-70b", "-tp", "4")


def summary(*arguments: str) -> dict[str, Any]:
    done = replay(*arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_one_stage_is_no_pipeline() -> None:
    """The same bytes as without a word about stages."""
    assert replay(*LARGE, "--pipeline-parallel-size", "1").stdout == replay(*LARGE).stdout


def test_stages_make_room_and_cost_time() -> None:
    """Two stages on twice the GPUs: all finish, with more blocks, and tokens come no sooner."""
    one, two = summary(*LARGE), summary(*LARGE, "-pp", "2")
    assert two["num_finished"] == 20
    assert two["num_kv_blocks"] > 2 * one["num_kv_blocks"]
    assert 1.0 < two["tpot_s"]["p50"] / one["tpot_s"]["p50"] < 1.1
    assert any("transfers between stages" in remark for remark in two["remarks"])


def test_under_load_stages_work_at_once() -> None:
    """Prompts all at once: with two stages each of half the layers, nearly twice as many tokens a second."""
    load = ("--request-rate", "inf", "--max-num-batched-tokens", "2048", "--front-cost", "request=0")
    one, two = summary(*LARGE, *load), summary(*LARGE, *load, "-pp", "2")
    assert two["ttft_s"]["mean"] < 0.65 * one["ttft_s"]["mean"]


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("arguments", [("--no-async-scheduling",), ("--engine-version", "0.31"), ()])
def test_runs_with_stages_are_the_same_each_time(arguments: tuple[str, ...]) -> None:
    """In either mode; a version before 0.32 does not plan ahead of stages by itself."""
    first = replay(*LARGE, "-pp", "3", *arguments)
    assert first.returncode == 0 and first.stdout == replay(*LARGE, "-pp", "3", *arguments).stdout


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_an_older_version_plans_stages_step_by_step() -> None:
    """As its model runner did."""
    old = summary(*LARGE, "-pp", "2", "--engine-version", "0.31")
    told = summary(*LARGE, "-pp", "2", "--engine-version", "0.31", "--no-async-scheduling")
    ahead = summary(*LARGE, "-pp", "2")
    assert old["tpot_s"] == told["tpot_s"] != ahead["tpot_s"]


TABLES = ("--cost", "tables", "--gpu", "a100-80gb")
REFUSED = [
    (["-pp", "0"], "pipeline-parallel-size"),
    (["-pp", "81", *LARGE], "pipeline_parallel_size is 81, and llama-3.1-70b has 80 layers"),
    (
        ["-pp", "2", "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 2}'],
        "pipeline_parallel_size is 2: drafts are verified by one stage alone",
    ),
    ([*MIXTRAL, "-dp", "2"], "add --enable-expert-parallel"),
    ([*MIXTRAL, "-dp", "2", "-pp", "2", "--enable-expert-parallel"], "leave --pipeline-parallel-size at 1"),
    (
        [*MIXTRAL, "-dp", "3", "--enable-expert-parallel"],
        "cannot be split evenly over 6 ranks: change --tensor-parallel-size or --data-parallel-size",
    ),
    ([*MIXTRAL, "-dp", "2", "--enable-expert-parallel", *TABLES], "experts were measured split"),
    (["-dp", "2", "--enable-expert-parallel"], "llama-3.1-8b has no experts"),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_does_not_go_together_is_refused_by_name(arguments: list[str], words: str) -> None:
    """Exit code 2, and the way out."""
    done = replay(*arguments)
    assert done.returncode == 2 and words in done.stderr, done.stderr


def test_a_calibrated_cost_has_no_stages(tmp_path: Path) -> None:
    """Its steps are whole ones."""
    file = tmp_path / "cost.toml"
    file.write_text('kind = "calibrated"\n')
    done = replay("--cost", str(file), "-pp", "2")
    assert done.returncode == 2 and "pipeline_parallel_size" in done.stderr, done.stderr


def test_an_emulated_server_has_stages() -> None:
    """It answers, and each token waits for every stage."""
    with live(*EMULATED, "-pp", "2", "--time-scale", "4") as server:
        answers = [server.complete("hello", max_tokens=8, ignore_eos=True) for _ in range(3)]
        assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [8, 8, 8]
        assert httpx.get(f"{server.url}/health", timeout=START_S).status_code == 200
        assert server.stop() == 0


def test_an_emulated_server_has_ranks_that_share_experts() -> None:
    """They answer, and where one crashes, both are there again."""
    ranks = ("-dp", "2", "--enable-expert-parallel", "--router", "round-robin", "--time-scale", "4")
    several = (*EMULATED[:-1], "qwen3-30b-a3b", *ranks)
    with live(*several) as server:
        both = [Stream(server, prompt="hello", max_tokens=50, ignore_eos=True) for _ in range(2)]
        assert {stream.whole()[-1]["choices"][0]["finish_reason"] for stream in both} == {"length"}
        headers = {"X-Sundog-Inject": "dead-engine"}
        body = {"prompt": "hello", "max_tokens": 5}
        url = f"{server.url}/v1/completions"
        assert httpx.post(url, json=body, headers=headers, timeout=START_S).status_code in (500, 503)
        server.until_health(200)
        assert {server.complete("hello", max_tokens=4).status_code for _ in range(4)} == {200}
        assert server.stop() == 0


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_a_sweep_varies_stages() -> None:
    """A column as any other; a number that cannot be is a row that says why."""
    vary = ("--model", "llama-3.1-8b", "--vary", "pipeline_parallel_size=1,2,33", "--limit", "20")
    one, two, none = cells(TRACE, *vary)
    assert len(one["runs"]) == len(two["runs"]) == 1
    assert "runs" not in none and "32 layers" in json.dumps(none)


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_kept_run_knows_its_stages(tmp_path: Path) -> None:
    """Its config.toml has them, and gives the same bytes."""
    first = replay(*LARGE, "-pp", "2", "--out", str(tmp_path / "run"))
    assert first.returncode == 0, first.stderr
    file = tmp_path / "run" / "config.toml"
    assert "pipeline_parallel_size = 2" in file.read_text()
    again = subprocess.run(
        [sys.executable, "-m", "sundog", "replay", "--config", str(file), "--json"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert again.returncode == 0 and again.stdout == first.stdout, again.stderr


def test_llama_4_is_played() -> None:
    """On eight H100; that its eyes are left out is said. On one it does not fit."""
    found = summary(
        "--model", "meta-llama/Llama-4-Scout-17B-16E-Instruct", "-tp", "8", "--max-model-len", "65536"
    )
    assert found["num_finished"] == 20 and any(
        "vision_config is left out" in text for text in found["remarks"]
    )
    done = replay("--model", "llama-4-scout-17b-16e", "--max-model-len", "65536")
    assert done.returncode == 2 and "does not fit" in done.stderr


def test_ranks_that_share_experts_go_in_step() -> None:
    """Each is an engine of its own; what is approximated is said; the same bytes each time."""
    ranks = (*MIXTRAL, "-dp", "2", "--enable-expert-parallel")
    first = replay(*ranks)
    assert first.returncode == 0 and first.stdout == replay(*ranks).stdout, first.stderr
    found = json.loads(first.stdout)
    assert found["num_finished"] == 20 and len(found["replicas"]) == 2
    assert any("step together" in remark for remark in found["remarks"])


def test_ranks_of_dense_models_are_replicas() -> None:
    """They share nothing, and the same bytes come out."""
    alike = [summary("-dp", "2"), summary("--replicas", "2")]
    assert alike[0]["ttft_s"] == alike[1]["ttft_s"] and alike[0]["tpot_s"] == alike[1]["tpot_s"]
