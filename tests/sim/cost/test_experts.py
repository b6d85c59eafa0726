"""Experts from measured tables: split over ranks or whole on ranks, in 16 bits and in float8."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sundog.sim.cost.composed import InStep
from sundog.sim.cost.doubt import step_doubt
from sundog.sim.cost.tables.experts import (
    ExpertsOnRank,
    ExpertTables,
    curve_of,
    has_experts_in,
    largest_share,
    measured_experts,
    slowest_curve,
)
from sundog.sim.cost.tables.interpolate import has_tables, load, log_interp
from sundog.sim.cost.tables.model import TablesCost
from sundog.sim.cost.tables.products import ExpertExchange
from sundog.sim.cost.work import Coverage, StepWork
from sundog.sim.hardware.formats import WeightFormat
from sundog.sim.hardware.gpu import known_gpus, load_gpu
from sundog.sim.hardware.model import load_model
from sundog.sim.hardware.quantization import BLOCK_FP8, FP8, MXFP4, NVFP4
from sundog.sim.hardware.shape import Experts
from tests.sundog.test_runs import sundog

MIXTRAL, SMALL, MINIMAX = (4096, 14336, 2, 8), (2048, 768, 8, 128), (3072, 1536, 8, 256)
WITH_EXPERTS = [name for name in known_gpus() if has_tables(name) and has_experts_in(name, None)]


def experts(
    gpu: str,
    shape: tuple[int, int, int, int],
    split: int = 1,
    whole: int = 1,
    form: WeightFormat | None = None,
) -> ExpertTables:
    return ExpertTables(gpu, load_gpu(gpu), ExpertsOnRank(*shape, split, whole), form, Coverage())


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("gpu", WITH_EXPERTS)
@pytest.mark.parametrize("shape", [MIXTRAL, SMALL, (2048, 512, 8, 256), (3000, 1300, 4, 60)], ids=str)
def test_experts_never_take_less_for_more_tokens(gpu: str, shape: tuple[int, int, int, int]) -> None:
    """Large and small ones and some that nobody measured, split and whole, in each format of the GPU."""
    for form, split, whole in itertools.product((None, FP8, BLOCK_FP8), (1, 2), (1, 4)):
        if not has_experts_in(gpu, form) or (split, whole) == (2, 4):
            continue
        found = experts(gpu, shape, split, whole, form)
        times = [found.seconds(tokens) for tokens in range(1, 4096, 7)]
        assert all(b >= a * (1 - 1e-12) for a, b in itertools.pairwise(times)), (form, split, whole)


def test_experts_are_routed_as_the_shape_of_the_tables_says() -> None:
    """Mixtral's are flat from eight tokens on; few tokens meet few of 128 small experts."""
    mixtral = experts("h100", MIXTRAL, 2)
    assert mixtral.seconds(96) / mixtral.seconds(16) < 1.1
    small = experts("h100", SMALL)
    all_read_s = 128 * 3 * 2048 * 768 * 2 / 3.35e12
    assert small.seconds(16) < all_read_s < small.seconds(128)


def test_a_measured_row_is_found_under_its_own_sizes() -> None:
    """Experts of Qwen3-235B over four ranks, not the equally large ones of Qwen3-30B."""
    assert experts("h100", (4096, 1536, 8, 128), 4).like == (4096, 1536, 8, 128, 4, 1)


def test_experts_of_a_model_that_was_not_measured_take_their_share() -> None:
    """Half as wide, half the time; half as many experts, half the weights to read."""
    whole, half = experts("h100", MIXTRAL), experts("h100", (4096, 7168, 2, 8))
    assert half.seconds(2048) == pytest.approx(whole.seconds(2048) / 2, rel=0.3)
    many, few = experts("h100", SMALL), experts("h100", (2048, 768, 8, 64))
    assert few.seconds(64) == pytest.approx(many.seconds(64) / 2, rel=0.25)


@pytest.mark.parametrize("gpu", ["h100", "h200", "b200"])
def test_more_ranks_with_whole_experts_each_take_less(gpu: str) -> None:
    """Down to what the shortest kernel takes; eight ranks take less than half of what one does."""
    for tokens in (1, 16, 128, 1024, 8192):
        times = [experts(gpu, MINIMAX, 1, whole, BLOCK_FP8).seconds(tokens) for whole in (1, 2, 4, 8, 16)]
        assert all(b <= a * 1.25 for a, b in itertools.pairwise(times)), (tokens, times)
        assert tokens == 1 or times[3] < times[0] / 2


def test_the_fullest_rank_is_sent_more_than_its_share() -> None:
    """More so with more ranks, fewer tokens and fewer experts each; never more than everything."""
    eight, many = ExpertsOnRank(*MINIMAX, 1, 8), ExpertsOnRank(*MINIMAX, 1, 64)
    assert 1.2 < largest_share(eight, 4096) < largest_share(many, 4096) < 4
    assert largest_share(eight, 4) > largest_share(eight, 4096)
    assert largest_share(ExpertsOnRank(*MINIMAX, 8, 1), 64) == 1.0
    assert largest_share(ExpertsOnRank(8, 8, 1, 2, 1, 2), 1) <= 2


def test_the_slowest_rank_takes_no_less_than_one_with_its_share() -> None:
    """A measured row of balanced tokens is a floor where many tokens are computed."""
    tables = load("h200-experts")
    key = [*MINIMAX, 1, 8]
    row = int(np.flatnonzero((tables["formats"] == "block fp8") & (tables["shapes"] == key).all(axis=1))[0])
    slowest = experts("h200", MINIMAX, 1, 8, BLOCK_FP8)
    for tokens, balanced_s in zip(tables["tokens"].tolist(), tables["balanced"][row].tolist(), strict=True):
        assert tokens < 512 or balanced_s < slowest.seconds(tokens) < 2 * balanced_s


def test_experts_in_eight_bits_are_faster_where_weights_are_read() -> None:
    """64 tokens meet most experts of Qwen3-30B-A3B; no format is made up where none was measured."""
    for gpu in ("h100", "h200", "b200", "rtx-pro-6000"):
        sixteen, eight = (experts(gpu, SMALL, 1, 1, form).seconds(64) for form in (None, FP8))
        assert 0.35 < eight / sixteen < 0.85
    assert not has_experts_in("a100-80gb", FP8) and not has_experts_in("h100", NVFP4)


def test_four_bits_are_read_in_less_time_than_eight_where_they_were_measured() -> None:
    """Experts of DeepSeek-V3 in nvfp4 on a B200; gpt-oss in mxfp4 wherever any experts were."""
    deepseek = (7168, 2048, 8, 256)
    four, eight = (experts("b200", deepseek, 8, 1, form).seconds(64) for form in (NVFP4, BLOCK_FP8))
    assert four < eight
    for gpu in WITH_EXPERTS:
        assert has_experts_in(gpu, MXFP4)
        family = "marlin alike" if gpu == "a100-80gb" else "experts"
        assert experts(gpu, (2880, 2880, 4, 128), 1, 1, MXFP4).family == family


def test_marlin_is_predicted_for_models_that_were_left_out() -> None:
    """Each of ten models by the other nine on an A100, at 1 to 4,096 tokens: 4 % off, never over 8."""
    rows, gpu = measured_experts("a100-80gb", "mxfp4"), load_gpu("a100-80gb")
    errors: dict[int, list[float]] = {tokens: [] for tokens in (1, 4, 16, 64, 256, 1024, 4096)}
    for own, measured in rows.items():
        others = {row: curves for row, curves in rows.items() if row[:4] != own[:4]}
        curve = [each.tolist() for each in curve_of(others, gpu, own, MXFP4)]
        real = [each.tolist() for each in slowest_curve(own, *measured)]
        for tokens, own_errors in errors.items():
            own_errors.append(abs(log_interp(tokens, *curve) / log_interp(tokens, *real) - 1))
    means = [sum(each) / len(each) for each in errors.values()]
    assert len({row[:4] for row in rows}) == 10
    assert sum(means) / len(means) < 0.05 and max(means) < 0.08


def test_whole_experts_in_blocks_took_longer_before_flashinfer_multiplied_them() -> None:
    """By the tables of vLLM 0.19 on an H200; on an H100 in the same ratio. Split ones have one kernel."""
    for gpu in ("h200", "h100"):
        options = {"name": gpu, "gpu": load_gpu(gpu), "form": BLOCK_FP8, "coverage": Coverage()}
        split, whole = ExpertsOnRank(*MINIMAX, 4, 1), ExpertsOnRank(*MINIMAX, 1, 8)
        for key, least, most in ((split, 0.999, 1.001), (whole, 1.0, 1.3)):
            was, now = (ExpertTables(experts=key, version=v, **options) for v in ("0.19.1", "0.24"))  # type: ignore[arg-type]
            assert least < was.seconds(8) / now.seconds(8) < most
            assert (was.seconds(4096) > 1.5 * now.seconds(4096)) == (key == whole)
    b200 = [ExpertTables("b200", load_gpu("b200"), whole, BLOCK_FP8, Coverage(), v) for v in ("0.16", "0.24")]
    assert b200[0].seconds(64) == b200[1].seconds(64)


def test_ranks_in_step_exchange_the_tokens_of_all() -> None:
    """A rank with few tokens beside one with many pays for all of them; over PCIe more than over NVLink."""
    costs = {}
    for gpu in ("h100", "rtx-pro-6000", "rtx-pro-6000:pcie-p2p"):
        described = load_gpu(gpu)
        options = {"whole_experts": True, "data_parallel_size": 2}
        costs[gpu] = TablesCost(load_model("qwen3-30b-a3b"), described, described.key, **options)  # type: ignore[arg-type]
        alone, few = StepWork(4, 4000, (), 4), StepWork(4, 4000, (), 4)
        many = StepWork(100, 100_000, (), 100)
        ranks = InStep(costs[gpu], 2)
        assert ranks.step_among_s([alone]) < ranks.step_among_s([few, many])
        assert costs[gpu].step_s(few) > 1.02 * costs[gpu].step_s(StepWork(4, 4000, (), 4))
    tables, tokens = load("rtx-pro-6000-experts"), 256
    through_host, direct = (
        ExpertExchange(tables, load_gpu(gpu), 2, Coverage()).seconds(tokens, 2048, 8)
        for gpu in list(costs)[1:]
    )
    assert through_host > 2 * direct


def test_ranks_are_padded_to_the_largest_batch_where_a_graph_is_replayed() -> None:
    """Beside 17 decodes an idle rank costs what one with 17 costs; a chunk beyond the graphs pads no rank."""
    cost = TablesCost(
        load_model("qwen3-30b-a3b"),
        load_gpu("h100"),
        "h100",
        captured_tokens=64,
        whole_experts=True,
        data_parallel_size=2,
    )
    ranks, mine = InStep(cost, 2), StepWork(17, 17_000, (), 17)
    assert ranks.step_among_s([mine]) == ranks.step_among_s([mine, StepWork(17, 17_000, (), 17)])
    chunk = StepWork(0, 0, ((900, 0),), 1)
    assert ranks.step_among_s([chunk]) < ranks.step_among_s([chunk, StepWork(0, 0, ((900, 0),), 1)])


def test_the_exchange_comes_out_as_measured() -> None:
    """All-gathers and reduce-scatters of NCCL between two H100: 8,192 tokens of 2,048 are 16.8 M elements."""
    exchange = ExpertExchange(load("h100-experts"), load_gpu("h100"), 2, Coverage())
    tables, seconds = load("h100-experts"), 0.0
    for name in ("gather", "scatter"):
        row = (tables[name] == (2, 16_777_216)).all(axis=1)
        seconds += float(tables[f"{name}_s"][row][0])
    assert exchange.seconds(8192, 2048, 8) == pytest.approx(seconds, rel=0.05)


def test_a_router_in_float32_is_a_cast_and_a_product_at_the_rate_of_float32() -> None:
    """MiniMax-M2.5, 62 layers: few tokens pay for the cast, many wait for arithmetic."""
    model, h200 = load_model("minimax-m2.5"), load_gpu("h200")
    layer, count = model.layers[0]
    assert count == 62 and isinstance(layer.mlp, Experts) and layer.mlp.routes_in_float32
    sixteen = replace(layer, mlp=replace(layer.mlp, routes_in_float32=False))
    costs = [
        TablesCost(replace(model, layers=((each, count),)), h200, "h200", tensor_parallel_size=8)
        for each in (layer, sixteen)
    ]
    few, many = StepWork(4, 4000, (), 4), StepWork(0, 0, ((8192, 0),), 1)
    more_s = [costs[0].step_s(work) - costs[1].step_s(work) for work in (few, many)]
    assert more_s[0] == pytest.approx(62 * 2.5e-6)
    arithmetic_s = 62 * 2 * 8192 * 3072 * 256 / (0.73 * 66.9e12)
    assert 0.9 * arithmetic_s < more_s[1] < 1.1 * arithmetic_s


def test_a_prompt_waits_for_the_launches_of_its_experts(tmp_path: Path) -> None:
    """Mixtral's 32 layers have five kernels more than a dense model's, of 50 microseconds each."""
    trace = tmp_path / "one.csv"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,600,2\n")
    options = ["--model", "mixtral-8x7b", "-tp", "2", "--json", "--no-ranges"]
    ttft_s = json.loads(sundog("replay", str(trace), *options).stdout)["ttft_s"]["mean"]
    assert ttft_s == pytest.approx(0.007 + 32 * (0.00083 + 5 * 0.00005), abs=0.001)


def test_ranges_of_whole_experts_are_as_wide_as_a_server_was_off() -> None:
    """A token of MiniMax-M2.5 on four H100 took 1.23 times as long as predicted."""
    model = load_model("minimax-m2.5")
    split, whole = (
        TablesCost(model, load_gpu("h100"), "h100", tensor_parallel_size=4, whole_experts=each)
        for each in (False, True)
    )
    assert step_doubt(split) < 0.23 < step_doubt(whole) < 0.35
