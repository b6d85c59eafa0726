"""Batches that are replayed from graphs: vLLM's rule, and what a step takes without one."""

import json
from pathlib import Path

import pytest

from sundog.sim.cost.overhead import NO_OVERHEAD, HostOverhead, graph_sizes, largest_graph
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
