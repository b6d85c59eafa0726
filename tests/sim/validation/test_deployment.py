"""Servers whose GPUs share work, draft, or store numbers in few bits: simulated as replay does it."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from sundog.actors.core.config import ConfigError
from sundog.builds.simulated import deploy
from sundog.options.engine import EngineOptions
from sundog.options.simulation import TargetOptions
from sundog.sim.cost.overhead import NO_OVERHEAD, host_overhead
from sundog.sim.cost.work import StepWork
from sundog.sim.figures.server_log import MeasuredError
from sundog.sim.validation.measured import MeasuredServer
from sundog.sim.validation.predict import Deployment, predict
from sundog.sim.validation.records import find_servers
from tests.sim.validation.test_validate import WRITTEN
from tests.sundog.test_runs import sundog

DENSE, EXPERTS = "llama-3.1-8b", "qwen3-30b-a3b"
DRAFTS: dict[str, object] = {"method": "ngram", "num_speculative_tokens": 3, "acceptance": 0.5}


def toml(table: dict[str, object]) -> str:
    """On one line."""
    return "{" + ", ".join(f"{key} = {json.dumps(value)}" for key, value in table.items()) + "}"


NGRAM = toml(DRAFTS)
DRAFT = toml({**DRAFTS, "method": "draft_model", "model": "llama-3.2-1b"})


def write(folder: Path, *keys: str, model: str = DENSE, name: str = "one") -> None:
    text = WRITTEN.format(rate=5.0, seqs=64).replace(DENSE, model).replace("async_scheduling = false", "")
    (folder / f"{name}.server.toml").write_text("\n".join(keys) + text)


def server(folder: Path, *keys: str, model: str = DENSE) -> MeasuredServer:
    write(folder, *keys, model=model)
    (found,) = find_servers(folder)
    return found


def ttft_s(folder: Path, *keys: str, model: str = DENSE) -> float:
    return predict(server(folder, *keys, model=model), NO_OVERHEAD, "auto")[0].figures["ttft mean"]


OPTIONS: list[tuple[str, tuple[str, ...], EngineOptions]] = [
    (DENSE, ("data_parallel_size = 2",), EngineOptions(data_parallel_size=2)),
    (
        DENSE,
        ("data_parallel_size = 2", 'engine_version = "0.26.0"'),
        EngineOptions(data_parallel_size=2, engine_version="0.26"),
    ),
    (DENSE, ("pipeline_parallel_size = 2",), EngineOptions(pipeline_parallel_size=2)),
    (
        DENSE,
        ('quantization = "fp8"', 'kv_cache_dtype = "fp8"'),
        EngineOptions(quantization="fp8", kv_cache_dtype="fp8"),
    ),
    (
        DENSE,
        ("enable_prefix_caching = false", "block_size = 32"),
        EngineOptions(enable_prefix_caching=False, block_size=32),
    ),
    (DENSE, (f"speculative_config = {NGRAM}",), EngineOptions(speculative_config=json.dumps(DRAFTS))),
    (
        EXPERTS,
        ("data_parallel_size = 2", "enable_expert_parallel = true"),
        EngineOptions(data_parallel_size=2, enable_expert_parallel=True),
    ),
]


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(("model", "keys", "engine"), OPTIONS, ids=lambda value: str(value)[:40])
def test_a_server_is_deployed_as_replay_does_it(
    tmp_path: Path, model: str, keys: tuple[str, ...], engine: EngineOptions
) -> None:
    """The same scheduler, ranks, balancer and costs as the options of the command line make."""
    deployment = Deployment.of(server(tmp_path, *keys, model=model))
    asked = replace(engine, max_num_seqs=64, max_num_batched_tokens=2048, num_gpu_blocks=9000)
    other = deploy(asked, TargetOptions(model=model, gpu="h100"))
    assert deployment.config.replicas == other.config.replicas
    assert deployment.config.router == other.config.router or other.config.replicas == 1
    assert deployment.config.speculation == other.config.speculation
    assert deployment.config.scheduler == replace(
        other.config.scheduler, max_model_len=deployment.config.scheduler.max_model_len
    )
    overhead = host_overhead(server(tmp_path, *keys, model=model).plans_ahead)
    ours = deployment.played_cost(deployment.target.cost(overhead))
    for work in (StepWork(4, 4000, (), 4), StepWork(4, 4000, ((300, 0),), 5)):
        assert ours.step_s(work) == other.cost.step_s(work) > 0


@pytest.mark.long(reason="predicts whole records of servers")
def test_ranks_and_stages_change_what_is_predicted(tmp_path: Path) -> None:
    """Two replicas wait less, as do two stages, whose first is free sooner; eight bits take less."""
    base = ttft_s(tmp_path)
    assert ttft_s(tmp_path, "data_parallel_size = 2") < base > ttft_s(tmp_path, "pipeline_parallel_size = 2")
    assert ttft_s(tmp_path, 'quantization = "fp8"') < base
    alone = ttft_s(tmp_path, model=EXPERTS)
    two = ttft_s(tmp_path, "data_parallel_size = 2", "enable_expert_parallel = true", model=EXPERTS)
    assert 0 < two != alone > 0


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_host_work_beside_drafts_overlaps_as_in_vllm(tmp_path: Path) -> None:
    """With a draft model it does, with drafts of n-grams it does not."""
    assert server(tmp_path).plans_ahead
    assert not server(tmp_path, f"speculative_config = {NGRAM}").plans_ahead
    assert server(tmp_path, f"speculative_config = {DRAFT}").plans_ahead
    assert predict(server(tmp_path, f"speculative_config = {DRAFT}"), NO_OVERHEAD, "auto")[0].figures


REFUSED = [
    (EXPERTS, "data_parallel_size = 2", "split over all ranks are not modelled"),
    (DENSE, "enable_expert_parallel = true", "has no experts"),
    (DENSE, 'quantization = "fp9"', "fp9"),
    (DENSE, 'kv_cache_dtype = "float32"', "kv_cache_dtype is float32"),
    (DENSE, 'speculative_config = { method = "ngram", num_speculative_tokens = 3 }', "acceptance is missing"),
    (DENSE, 'speculative_config = { method = "eagle" }', "method"),
    (
        DENSE,
        'speculative_config = { model = "qwen3-0.6b", num_speculative_tokens = 3, acceptance = 0.5 }',
        "a draft model needs the same tokens",
    ),
]


@pytest.mark.long(reason="predicts whole records of servers")
def test_what_cannot_be_predicted_is_a_line(tmp_path: Path) -> None:
    """Through the command line, each of them, beside what can be."""
    for number, (model, key, _) in enumerate(REFUSED):
        write(tmp_path, key, model=model, name=str(number))
    done = sundog("validate", tmp_path, "--json", "--no-host-overhead")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert not {stage["server"] for stage in told["stages"]} & set(map(str, range(len(REFUSED))))
    reasons = {refusal["server"]: refusal["reason"] for refusal in told["refused"]}
    assert sorted(reasons) == [str(number) for number in range(len(REFUSED))]
    for number, (_, key, words) in enumerate(REFUSED):
        assert words in reasons[str(number)], key


def test_a_wrong_kind_of_value_names_its_key(tmp_path: Path) -> None:
    """While the record is read."""
    for key in ("data_parallel_size = 0", 'enable_expert_parallel = "yes"', "block_size = 0"):
        with pytest.raises(MeasuredError, match=key.partition(" ")[0]):
            server(tmp_path, key)


ARGUMENTS: list[tuple[dict[str, object], str | None]] = [
    ({"enforce_eager": True}, None),
    ({"cpu_offload_gb": 4}, "cpu_offload_gb is 4: not modelled"),
    ({"scheduling_policy": "priority"}, "scheduling_policy is 'priority'"),
    ({"decode_context_parallel_size": 2}, "decode_context_parallel_size is 2: not modelled"),
    ({"enforce_eager": False, "decode_context_parallel_size": 1, "seed": 42}, None),
]


@pytest.mark.parametrize(("arguments", "reason"), ARGUMENTS, ids=str)
def test_arguments_of_a_servers_log_are_heeded(
    tmp_path: Path, arguments: dict[str, object], reason: str | None
) -> None:
    """Those that change what a step takes and are not modelled are refused by name."""
    folder = tmp_path / "H100_Llama-3.1-8B"
    folder.mkdir()
    engine = {
        "model": "meta-llama/Llama-3.1-8B",
        "tensor_parallel_size": 1,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        "kv_cache_dtype": "fp8",
        **arguments,
    }
    (folder / "meta.json").write_text(json.dumps({"vllm_version": "0.19.0", "engine_kwargs": engine}))
    row = {"input_toks": 40, "output_toks": 4}
    rows = [{**row, "queued_ts": i, "first_token_ts": i + 0.1, "last_token_ts": i + 0.2} for i in range(3)]
    text = "".join(json.dumps(each) + "\n" for each in rows)
    (folder / "requests.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    (real,) = find_servers(tmp_path)
    if reason is not None:
        with pytest.raises(ConfigError, match=reason):
            predict(real, NO_OVERHEAD, "auto")
        return
    assert Deployment.of(real).target.kv_dtype == "float8"
