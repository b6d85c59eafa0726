"""Batches replayed from captured graphs: vLLM's rule, and step times without one."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sundog.sim.cost.overhead import ASYNC_OVERHEAD, NO_OVERHEAD, HostOverhead, graph_sizes, largest_graph
from sundog.sim.cost.work import StepWork
from sundog.sim.hardware.gpu import load_gpu
from sundog.sim.hardware.model import load_model
from sundog.sim.target import Target
from tests.sundog.test_runs import sundog


@pytest.mark.parametrize(
    ("gpu", "version", "seqs", "budget", "drafts", "tokens"),
    [
        ("h100", "0.23", 256, 8192, 0, 512),
        ("h100", "0.15", 128, 2048, 0, 256),
        ("h100", "0.33", 1, 2048, 0, 2),
        ("h100", "0.33", 12, 2048, 0, 24),
        ("h100", "0.33", 13, 2048, 0, 24),
        ("h100", "0.33", 150, 2048, 0, 288),
        ("h100", "0.33", 256, 100, 0, 100),
        ("h100", "0.33", 32, 2048, 3, 256),
        ("b200", "0.33", 1024, 16384, 0, 1024),
        ("b200", "0.31", 1024, 16384, 0, 512),
        ("rtx-pro-6000", "0.33", 1024, 16384, 0, 512),
    ],
)
def test_graphs_go_up_to_twice_what_decodes_in_a_step(
    gpu: str, version: str, seqs: int, budget: int, drafts: int, tokens: int
) -> None:
    """At most 512 tokens, 1,024 on data-centre Blackwell, and never more than a step may have."""
    assert largest_graph(load_gpu(gpu), version, seqs, budget, drafts) == tokens


def test_sizes_are_those_that_are_captured() -> None:
    """Eight apart up to 256 tokens, then sixteen."""
    assert graph_sizes(24) == [1, 2, 4, 8, 16, 24]
    assert graph_sizes(300)[-4:] == [248, 256, 272, 288]
    assert len(graph_sizes(512)) == 51


@pytest.mark.parametrize("kind", ["tables", "roofline"])
@pytest.mark.parametrize("stages", [1, 2])
def test_a_batch_beyond_the_largest_graph_is_launched_layer_by_layer(kind: str, stages: int) -> None:
    """The same 300 tokens with room for 64 requests, and for 256."""
    overhead = HostOverhead(eager_layer_s=0.01)
    hardware = Target(
        load_model("llama-3.1-8b"), load_gpu("h100"), cost_model=kind, pipeline_parallel_size=stages
    )
    few, many = (hardware.with_limits("0.33", seqs, 8192).cost(overhead) for seqs in (64, 256))
    work = StepWork(0, 0, ((300, 0),), 1)
    assert few.step_s(work) >= 32 * 0.01 > 10 * many.step_s(work)
    assert few.step_s(StepWork(64, 6400, (), 64)) == many.step_s(StepWork(64, 6400, (), 64))


@pytest.mark.parametrize("kind", ["tables", "roofline"])
@pytest.mark.parametrize(
    ("model", "ranks", "launches_s"),
    [
        ("llama-3.1-8b", 1, 32 * 10 * 50e-6),  # 16.0 ms: ten kernels a layer
        ("qwen3-8b", 1, 36 * 12 * 50e-6),  # 21.6 ms: two more where queries and keys are normalised
        ("qwen3-8b", 2, 36 * (830e-6 + 2 * 50e-6)),  # 33.5 ms: two all-reduces a layer
        ("qwen3-30b-a3b", 1, 48 * 17 * 50e-6),  # 40.8 ms: five more with experts
    ],
)
def test_an_eager_server_launches_every_step_kernel_by_kernel(
    kind: str, model: str, ranks: int, launches_s: float
) -> None:
    """Four decodes take what launching takes, a long prompt what it always does, and nothing is padded."""
    target = Target(
        load_model(model), load_gpu("h100"), tensor_parallel_size=ranks, cost_model=kind, enforce_eager=True
    )
    eager, graphs = (
        each.with_limits("0.33", 256, 8192).cost(ASYNC_OVERHEAD)
        for each in (target, replace(target, enforce_eager=False))
    )
    few, prompt = StepWork(4, 4000, (), 4), StepWork(0, 0, ((8192, 0),), 1)
    assert eager.step_s(few) == pytest.approx(launches_s, rel=1e-9)
    assert eager.run_s(few, 3) == pytest.approx([launches_s] * 3, rel=1e-9)
    assert graphs.step_s(few) < launches_s
    assert eager.step_s(prompt) == pytest.approx(graphs.step_s(prompt))
    no_host, no_graphs = (
        replace(target, enforce_eager=is_eager).with_limits("0.33", 256, 8192).cost(NO_OVERHEAD)
        for is_eager in (True, False)
    )
    odd = StepWork(0, 0, ((249, 0),), 1)  # a graph of 256 tokens
    assert no_host.step_s(odd) <= no_graphs.step_s(odd)


def test_enforce_eager_is_taken_from_the_command_line(tmp_path: Path) -> None:
    """A lone Llama-3.1-8B decodes in 16 ms a token, and in less than 10 with graphs."""
    trace = tmp_path / "one.csv"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,300,20\n")
    options = ["--model", "llama-3.1-8b", "--gpu", "h100", "--json"]
    tpots_s = [
        json.loads(sundog("replay", str(trace), *options, *more).stdout)["tpot_s"]["mean"]
        for more in ([], ["--enforce-eager"])
    ]
    assert tpots_s[1] == pytest.approx(0.016, rel=0.001) and tpots_s[0] < 0.01


def test_only_what_is_replayed_is_padded() -> None:
    """A step of 401 tokens is padded to 416 where a graph of them is captured."""
    hardware = Target(load_model("llama-3.1-8b"), load_gpu("h100"), cost_model="tables")
    few, many = (hardware.with_limits("0.33", seqs, 8192).cost(NO_OVERHEAD) for seqs in (64, 256))
    exact, padded = StepWork(0, 0, ((401, 0),), 1), StepWork(0, 0, ((416, 0),), 1)
    assert few.step_s(exact) < few.step_s(padded)
    products_alike = many.step_s(padded) - many.step_s(exact)
    assert 0 <= products_alike < few.step_s(padded) - few.step_s(exact)


def test_limits_of_the_command_line_decide_what_is_captured(tmp_path: Path) -> None:
    """A prompt of 300 tokens waits longer for its first token where only 8 requests may run."""
    trace = tmp_path / "one.csv"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,300,2\n")
    waits = []
    for seqs in ("8", "256"):
        options = ["--model", "llama-3.2-1b", "--gpu", "h100", "--max-num-seqs", seqs, "--json"]
        waits.append(json.loads(sundog("replay", str(trace), *options).stdout)["ttft_s"]["mean"])
    assert waits[0] > waits[1] + 0.002
