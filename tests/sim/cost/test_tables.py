"""Measured tables: exact at measured points, interpolated between, and remarked upon outside."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from sundog.actors.core.config import ConfigError
from sundog.sim.cost.doubt import DERIVED_CACHE, TABLES, outside_measured, step_doubt
from sundog.sim.cost.overhead import NO_OVERHEAD, WithOverhead, host_overhead
from sundog.sim.cost.roofline import Roofline
from sundog.sim.cost.tables.attention import ContextAttention, GenerationAttention, MixedAttention
from sundog.sim.cost.tables.interpolate import Lines, around, has_tables, load, log_interp, rising
from sundog.sim.cost.tables.model import TablesCost, unlike_tables
from sundog.sim.cost.tables.products import LATEST, SKEW_S, SUSTAINED, AllReduce, Products
from sundog.sim.cost.work import Coverage, StepWork
from sundog.sim.hardware.gpu import known_gpus, load_gpu
from sundog.sim.hardware.model import known_models, load_model
from sundog.sim.hardware.quantization import FP8
from sundog.sim.target import Target
from tests.sim.hardware.params import num_active_params

GPUS = [name for name in known_gpus() if has_tables(name)]
H100 = load("h100")
GPU = load_gpu("h100")


def model(name: str, gpu: str, ranks: int = 1) -> TablesCost:
    described = load_gpu(gpu)
    return TablesCost(load_model(name), described, described.key, tensor_parallel_size=ranks)


def test_the_data_centre_gpus_have_tables() -> None:
    """And a file of the user's own has none."""
    assert {"a100-80gb", "h100", "h200", "l40s", "rtx-4090"} <= set(GPUS)
    assert not has_tables("") and not has_tables("a100-40gb")


def test_a_measured_product_comes_out_as_measured_or_as_more_tokens_were() -> None:
    """At every m of a measured shape: the least of what that many tokens or more took, above the floor."""
    products = Products(H100, GPU, Coverage())
    points, seconds = H100["gemm"], H100["gemm_s"]
    for n, k in ((4096, 4096), (6144, 4096), (16384, 5120)):
        rows = (points[:, 1] == n) & (points[:, 2] == k)
        curve = dict(zip(products.ms.tolist(), products.curve(n, k), strict=True))
        measured = dict(zip(points[rows][:, 0].tolist(), seconds[rows].tolist(), strict=True))
        floor = dict(zip(products.ms.tolist(), products.floor(n, k), strict=True))
        assert len(measured) > 50
        for m in measured:
            least_s = min(s for other, s in measured.items() if other >= m)
            assert curve[m] == pytest.approx(max(least_s, floor[m]), rel=1e-6)


def test_a_product_is_bounded_by_bandwidth_and_arithmetic_wherever_it_was_measured() -> None:
    """An output head of 151,936 rows reads 1.56 GB: its seconds rise, and stay near the floor."""
    products = Products(H100, GPU, Coverage())
    for n, k in ((151_936, 5120), (128_256, 4096), (4096, 2048), (300_000, 8192), (64, 16)):
        curve, floor = products.curve(n, k), products.floor(n, k)
        assert (curve >= floor).all() and (np.diff(curve) >= 0).all()
        few = products.ms <= 64
        assert n * k < 1e7 or (curve[few] < 1.25 * floor[few]).all()


def test_the_highest_rising_curve_below_lies_below_and_rises() -> None:
    """It meets its last point, and every point that nothing later undercuts."""
    values = np.array([3.0, 1.0, 2.0, 5.0, 4.0, 6.0])
    assert rising(values).tolist() == [1.0, 1.0, 2.0, 4.0, 4.0, 6.0]


def test_a_product_that_was_not_measured_lies_between_its_neighbours() -> None:
    """In both directions of its weights."""
    products = Products(H100, GPU, Coverage())
    small, large = products.curve(8192, 4096), products.curve(10240, 5120)
    between = products.curve(9000, 4500)
    large_m = products.ms >= 1024
    assert (small < between)[large_m].all() and (between < large)[large_m].all()


def test_the_sizes_around_a_size_are_its_neighbours_or_the_last_one() -> None:
    """With the share of the second, by ratio."""
    known = [2, 4, 8, 100]
    assert around(4, known) == (4, 4, 0.0)
    assert around(5, known) == (4, 8, pytest.approx(math.log(5 / 4) / math.log(2)))
    assert around(200, known) == (100, 100, 0.0)
    assert around(1, known) == (2, 2, 0.0)


def test_straight_lines_in_logarithms_go_on_beyond_the_ends() -> None:
    """A power law is met exactly everywhere."""
    xs = np.array([1.0, 10.0, 100.0])
    for x in (0.1, 1.0, 3.0, 10.0, 5000.0):
        assert log_interp(x, xs.tolist(), (2 * xs**1.5).tolist()) == pytest.approx(2 * x**1.5)


@pytest.mark.parametrize("first", [0.5, 1.0, 1.5, 3.0, 7.0, 9.0])
def test_lines_give_the_same_bits_for_one_place_for_a_few_and_for_many(first: float) -> None:
    """Before the first point, on points, across several, and beyond the last one."""
    lines = Lines(np.array([1.0, 3.0, 3.1, 7.0, 8.0]), np.array([0.1, 0.7, 0.9, 1.3, 1.7]))
    for step in (0.0, 0.1, 1.0, 2.5):
        places = [first + turn * step for turn in range(40)]
        one_by_one = [lines.at(place) for place in places]
        few = lines.at_few(first, step, count=40)
        assert few == one_by_one == lines.at_each(np.array(places)).tolist()
        halves = lines.at_few(2 * first, 2 * step, count=40, over=2.0, plus=0.5)
        assert halves == [0.5 + value for value in one_by_one]


def test_attention_of_a_prompt_comes_out_as_measured() -> None:
    """At every measured length."""
    context = ContextAttention(H100, 32, 8, 128, Coverage())
    points = H100["context"]
    rows = (points[:, 0] == 32) & (points[:, 1] == 8) & (points[:, 2] == 128)
    for point, seconds in zip(points[rows], H100["context_s"][rows], strict=True):
        assert context.seconds(int(point[3]), 0) == pytest.approx(float(seconds), rel=0.05)


DECODES = {  # (decodes, context): microseconds of a layer of Llama-3.1-8B in vLLM 0.19
    (1, 1024): 14.6,
    (8, 512): 25.2,
    (8, 4096): 108.2,
    (16, 1024): 60.3,
    (32, 512): 63.2,
    (64, 512): 127.4,
    (64, 1024): 221.2,
    (128, 256): 134.8,
    (128, 2048): 760.1,
    (256, 1024): 754.8,
}


@pytest.mark.parametrize("work", DECODES, ids=str)
def test_decodes_read_memory_and_not_the_cache_of_a_repeated_call(work: tuple[int, int]) -> None:
    """Held out: an RTX PRO 6000 profiled in a server, priced by tables that know only repeated calls."""
    pro = load_gpu("rtx-pro-6000")
    attention = GenerationAttention(load("rtx-pro-6000"), 32, 8, 128, pro, Coverage())
    assert attention.seconds(*work) * 1e6 == pytest.approx(DECODES[work], rel=0.16)


def test_attention_of_decodes_rises_between_bandwidth_and_launch() -> None:
    """In requests and in context; on an H100 it never takes longer than both together."""
    attention = GenerationAttention(H100, 40, 8, 128, GPU, Coverage())
    for context in (128, 512, 1024, 4096):
        times = [attention.seconds(n, context) for n in range(1, 129)]
        assert all(b >= a * 0.999 for a, b in itertools.pairwise(times))
        reads = [n * context * attention.row_bytes / attention.bytes_per_s for n in range(1, 129)]
        assert all(0.95 * read < time for read, time in zip(reads, times, strict=True))
    step = attention.seconds(16, 1024) - attention.seconds(8, 1024)
    assert step == pytest.approx(8 * 1024 * attention.row_bytes / attention.bytes_per_s, rel=0.15)


MIXED = {  # (chunk, decodes, context): microseconds of a layer, as above
    (16, 1, 1024): 28.0,
    (16, 16, 1024): 82.0,
    (16, 64, 1024): 310.5,
    (512, 16, 512): 73.2,
    (512, 64, 1024): 348.6,
    (2048, 16, 1024): 268.0,
    (2048, 64, 1024): 570.0,
    (2048, 128, 512): 744.0,
}


@pytest.mark.parametrize("work", MIXED, ids=str)
def test_decodes_beside_a_chunk_cost_a_tile_of_queries(work: tuple[int, int, int]) -> None:
    """Fitted: to this card and an RTX 4090, in five constants."""
    pro, tables = load_gpu("rtx-pro-6000"), load("rtx-pro-6000")
    generation = GenerationAttention(tables, 32, 8, 128, pro, Coverage())
    mixed = MixedAttention(ContextAttention(tables, 32, 8, 128, Coverage()), generation, pro, 32, 8)
    chunk, decodes, context = work
    seconds = mixed.seconds(((chunk, 0),), decodes, decodes * context)
    assert seconds * 1e6 == pytest.approx(MIXED[work], rel=0.15)
    assert seconds >= mixed.seconds(((chunk, 0),), 0, 0)


STEPS = {1: 11.23, 2: 11.34, 4: 11.56, 8: 11.85, 9: 12.07, 10: 12.05}
PREFILLS = {1: 39.8, 3: 40.4, 7: 41.1}


def test_steps_of_the_fitted_server_are_met_within_one_and_five_percent() -> None:
    """Medians of Qwen3-14B on an H100: decodes alone (fitted), and beside 986 tokens at full clock (not)."""
    cost = WithOverhead(model("qwen3-14b", "h100"), host_overhead(async_scheduling=True))
    for decodes, ms in STEPS.items():
        step = StepWork(decodes, decodes * 1050, (), decodes)
        assert cost.step_s(step) * 1e3 == pytest.approx(ms, rel=0.01)
    for decodes, ms in PREFILLS.items():
        step = StepWork(decodes, decodes * 1050, ((986, 0),), decodes + 1)
        assert cost.step_s(step) * 1e3 == pytest.approx(ms, rel=0.05)


def beside_s(chunk: int, heads: int, kv_heads: int, gpu: str = "h100") -> tuple[float, float]:
    """Seconds that 16 decodes of 1,024 tokens add to a chunk in one layer, and that they take alone."""
    tables, described = load(gpu), load_gpu(gpu)
    context = ContextAttention(tables, heads, kv_heads, 128, Coverage())
    generation = GenerationAttention(tables, heads, kv_heads, 128, described, Coverage())
    mixed = MixedAttention(context, generation, described, heads, kv_heads)
    with_s, without_s = (mixed.seconds(((chunk, 0),), n, n * 1024.0) for n in (16, 0))
    return with_s - without_s, generation.seconds(16, 1024) - context.launch_s


def test_a_wide_chunk_makes_decodes_of_few_key_heads_dearer_and_a_narrow_one_does_not() -> None:
    """FlashAttention 3 takes its wide kernel from 64 rows of a tile on: 16 tokens of four heads, not 17."""
    (narrow_s, alone_s), (wide_s, _) = (beside_s(chunk, 32, 8) for chunk in (16, 17))
    assert narrow_s == pytest.approx(alone_s)
    assert 1.6 < wide_s / alone_s < 2.5
    assert beside_s(2048, 32, 8)[0] == pytest.approx(wide_s)
    assert beside_s(64, 32, 32)[0] < 1.3 * beside_s(64, 32, 32)[1] < beside_s(65, 32, 32)[0]


def test_gpus_that_run_decodes_in_a_kernel_of_their_own_have_no_wide_tiles() -> None:
    """A B200 adds both kernels, whatever the chunk."""
    assert beside_s(16, 32, 8, "b200") == pytest.approx(beside_s(2048, 32, 8, "b200"))


def test_products_of_long_prompts_take_what_the_power_limit_allows() -> None:
    """On an H100, whose tables were measured at full clock; few tokens are bound by memory as before."""
    products = Products(H100, GPU, Coverage())
    curve, ms = products.curve(34816, 5120), products.ms
    rates = 2.0 * ms * 34816 * 5120 / curve
    assert rates.max() <= SUSTAINED["h100"] * (1 + 1e-9)
    assert curve[ms == 64][0] < 1.1 * products.floor(34816, 5120)[ms == 64][0]


@pytest.mark.parametrize("gpu", ["h100", "a100"])
def test_a_prefill_of_a_few_tokens_costs_what_decodes_cost(gpu: str) -> None:
    """After a prefix hit, 1 to 16 tokens beside decodes take at most a tenth longer than decodes."""
    cost = WithOverhead(model("llama-2-7b", gpu), host_overhead(async_scheduling=True))
    alone = cost.step_s(StepWork(16, 16 * 600, (), 16))
    for tokens in (1, 4, 16):
        assert cost.step_s(StepWork(15, 15 * 600, ((tokens, 576),), 16)) < 1.1 * alone


def test_a_prompt_in_chunks_has_the_pairs_of_the_whole() -> None:
    """So chunks cost at least the whole, and a later chunk more than an earlier one."""
    context = ContextAttention(H100, 32, 8, 128, Coverage())
    first, second = context.seconds(4096, 0), context.seconds(4096, 4096)
    assert second > 2 * first
    assert first + second == pytest.approx(context.seconds(8192, 0), rel=0.25)


def test_many_key_heads_are_priced_as_many_requests() -> None:
    """32 key heads read what four requests with 8 of them read."""
    many = GenerationAttention(H100, 32, 32, 128, GPU, Coverage())
    few = GenerationAttention(H100, 8, 8, 128, GPU, Coverage())
    assert np.array_equal(many.curve(16)[1], few.curve(64)[1])


def test_an_all_reduce_takes_longer_for_more_bytes() -> None:
    """From the largest measured size on in proportion."""
    reduce = AllReduce(H100, GPU, 4, Coverage())
    times = [reduce.seconds(2**power) for power in range(12, 31)]
    assert all(b >= a for a, b in itertools.pairwise(times))
    assert times[-1] / times[-2] == pytest.approx(2, rel=0.1)


HOST = {1024: 17.4, 8192: 20.5, 65536: 27.5, 262144: 55.5, 1048576: 157.5, 8388608: 1117.6}


@pytest.mark.parametrize("elements", HOST)
def test_ranks_without_access_to_each_other_go_through_the_host(elements: int) -> None:
    """Fitted: a measured pair of RTX PRO 6000 without it, from the table of a pair with it."""
    pro = load_gpu("rtx-pro-6000")
    reduce = AllReduce(load("rtx-pro-6000"), pro, 2, Coverage())
    in_step_s = reduce.seconds(elements) - 2 * SKEW_S * LATEST[2]
    assert in_step_s * 1e6 == pytest.approx(HOST[elements], rel=0.14)


def test_a_slower_link_makes_a_slower_step() -> None:
    """NVLink, PCIe into each other's memory, PCIe through the host; one rank does not care."""

    def step_s(gpu: str, ranks: int) -> float:
        described = load_gpu(gpu)
        cost = TablesCost(load_model("qwen3-14b"), described, described.key, tensor_parallel_size=ranks)
        return cost.step_s(StepWork(16, 16 * 800, (), 16))

    assert step_s("h100", 2) < step_s("h100:pcie-p2p", 2) < step_s("h100:pcie", 2)
    assert step_s("rtx-pro-6000:pcie-p2p", 2) < step_s("rtx-pro-6000", 2) == step_s("rtx-pro-6000:pcie", 2)
    assert step_s("h100", 1) == step_s("h100:pcie", 1)


def test_a_profile_comes_out_of_the_tables_that_were_fitted_to_it() -> None:
    """Fitted: Llama-3.1-8B on an RTX 4090 in vLLM 0.19, microseconds of a layer and of the head."""
    tables, gpu = load("rtx-4090"), load_gpu("rtx-4090")
    products = Products(tables, gpu, Coverage())
    for n, k, microseconds in ((28672, 4096, 251.5), (4096, 14336, 130.2), (128256, 4096, 1114.3)):
        curve = products.curve(n, k)
        assert curve[products.ms == 8][0] * 1e6 == pytest.approx(microseconds, rel=0.05)
    attention = GenerationAttention(tables, 32, 8, 128, gpu, Coverage())
    assert attention.seconds(64, 1024) * 1e6 == pytest.approx(333, rel=0.1)


SHAPES = {m: load_model(m) for m in known_models()}
PRICED = [(g, m) for g in GPUS for m, shape in SHAPES.items() if unlike_tables(shape, g) is None]


@pytest.mark.long(keep=60, reason="more models of the law that `make test` states of every seventh")
@pytest.mark.parametrize(("gpu", "name"), PRICED)
def test_every_model_is_priced_near_its_roofline(gpu: str, name: str) -> None:
    """Two independent sources of the same physics; small models are ruled by fixed times."""
    ranks = 4 if "70b" in name or "mixtral" in name else 1
    tables = model(name, gpu, ranks)
    roofline = Roofline(load_model(name), load_gpu(gpu), tensor_parallel_size=ranks)
    for work in (
        StepWork(8, 8 * 1000, (), 8),
        StepWork(64, 64 * 1500, (), 64),
        StepWork(0, 0, ((2048, 0),), 1),
        StepWork(32, 32 * 1000, ((512, 1024),), 33),
    ):
        ratio = tables.step_s(work) / roofline.step_s(work)
        # Ranks over PCIe reduce several times slower than the roofline's; fixed times rule small experts.
        is_near = ranks == 1 and not (SHAPES[name].has_experts and num_active_params(SHAPES[name]) < 1e9)
        assert 0.4 < ratio < (2.5 if is_near else 5), (work, ratio)


@pytest.mark.parametrize("gpu", [name for name in GPUS if has_tables(f"{name}-fp8")])
def test_products_in_eight_bits_are_faster_and_near_their_roofline(gpu: str) -> None:
    """A decode reads half the bytes; the head and attention stay in 16 bits."""
    described, plain = load_gpu(gpu), load_model("qwen3-32b")
    shape = replace(plain, weights=FP8)
    eight, sixteen = (TablesCost(each, described, described.key) for each in (shape, plain))
    roofline = Roofline(shape, described)
    for work in (StepWork(1, 1000, (), 1), StepWork(16, 16_000, (), 16), StepWork(0, 0, ((2048, 0),), 1)):
        assert 0.5 < eight.step_s(work) / sixteen.step_s(work) < 0.75, work
        assert 0.9 < eight.step_s(work) / roofline.step_s(work) < 1.5, work


def test_more_context_is_never_cheaper_and_never_ends() -> None:
    """Also far beyond what was measured."""
    tables = model("llama-3.1-8b", "h100")
    times = [
        tables.step_s(StepWork(64, 64 * context, (), 64))
        for context in (1, 100, 1000, 10_000, 100_000, 1_000_000, 5_000_000)
    ]
    assert all(b >= a for a, b in itertools.pairwise(times))
    assert times[-1] / times[-2] == pytest.approx(5, rel=0.1)


def test_a_batch_that_only_decodes_is_padded_to_a_captured_size() -> None:
    """17 requests cost the products of 24; with a chunk nothing is padded."""
    tables = model("llama-3.1-8b", "h100")
    rest = [tables._rest_s(StepWork(n, n, (), 0)) for n in (17, 24, 25)]
    assert rest[0] == rest[1] < rest[2]


def test_coverage_says_how_far_outside_the_measured_sizes_a_query_was() -> None:
    """Nothing inside; the largest factor outside."""
    tables = model("llama-2-7b", "h100")
    assert tables.coverage.factors == {}
    tables.step_s(StepWork(0, 0, ((65536, 0),), 1))
    assert tables.coverage.factors["gemm m"] == 2.0
    assert tables.coverage.factors["context attention"] == 4.0
    far = outside_measured(WithOverhead(tables, NO_OVERHEAD))
    assert far == {"gemm m": 2.0, "context attention": 4.0}
    doubt = step_doubt(tables)
    tables.step_s(StepWork(0, 0, ((131072, 0),), 1))
    assert outside_measured(tables)["context attention"] == 8.0
    assert step_doubt(tables) == pytest.approx(doubt + 0.02)
    roofline = Roofline(load_model("llama-2-7b"), load_gpu("h100"))
    assert outside_measured(roofline) == {}


def test_an_output_head_beyond_the_measured_widths_is_remarked() -> None:
    """151,936 rows are 2.3 times the widest product of the tables."""
    assert outside_measured(model("qwen3-14b", "h100")) == {"gemm n": pytest.approx(151_936 / 65_536)}


@pytest.mark.parametrize("gpu", ["a100", "l40s", "rtx-4090", "rtx-pro-6000"])
def test_decodes_on_a_cache_of_eight_bits_read_half_as_many_tokens(gpu: str) -> None:
    """Where no kernel was measured with one, eight of 4,096 tokens take what eight of 2,048 do in 16 bits."""
    target = Target(load_model("llama-3.1-8b"), load_gpu(gpu))
    full, half = (replace(target, kv_dtype=dtype).cost(NO_OVERHEAD) for dtype in (None, "float8"))
    assert isinstance(half, WithOverhead) and isinstance(half.model, TablesCost)
    assert half.step_s(StepWork(8, 8 * 4096, (), 8)) == pytest.approx(
        full.step_s(StepWork(8, 8 * 2048, (), 8)), rel=1e-9
    )
    prompt = StepWork(0, 0, ((1000, 0),), 1)
    assert half.step_s(prompt) == full.step_s(prompt)
    assert step_doubt(half) == pytest.approx(step_doubt(full) + DERIVED_CACHE)
    assert any("8-bit cache was not measured" in text for text in replace(target, kv_dtype="float8").remarks)
    assert not target.remarks
    windows = Target(load_model("gpt-oss-20b"), load_gpu("l40s"), kv_dtype="float8")
    assert any("roofline" in text for text in windows.remarks)


def test_where_a_cache_of_eight_bits_was_measured_that_counts() -> None:
    target = Target(load_model("llama-3.1-8b"), load_gpu("h100"), kv_dtype="float8")
    sixteen = step_doubt(replace(target, kv_dtype=None).cost(NO_OVERHEAD))
    assert not target.remarks and step_doubt(target.cost(NO_OVERHEAD)) == sixteen


def test_doubt_grows_with_what_is_not_known() -> None:
    """Tables of dense models least; experts, ranks through the host and the roofline more."""
    known = step_doubt(model("llama-2-7b", "h100"))
    roofline = step_doubt(Roofline(load_model("llama-2-7b"), load_gpu("h100")))
    experts = step_doubt(model("mixtral-8x7b", "h100", 2))
    pair = step_doubt(model("llama-2-7b", "rtx-pro-6000", 2))
    assert known == TABLES < experts < roofline and known < pair <= roofline


def test_tables_are_taken_where_there_are_any() -> None:
    """Asking for tables that there are not is one clear error; the roofline is always there."""

    def cost(gpu: str, **options: str) -> object:
        target = Target(load_model("llama-3.1-8b"), load_gpu(gpu), **options)  # type: ignore[arg-type]
        priced = target.cost(NO_OVERHEAD)
        assert isinstance(priced, WithOverhead)
        return priced.model

    assert isinstance(cost("h100"), TablesCost)
    assert isinstance(cost("h100", cost_model="roofline"), Roofline)
    assert isinstance(cost("h100", dtype="float8"), Roofline)
    assert isinstance(cost("a100-40gb"), Roofline)
    with pytest.raises(ConfigError, match="no kernels were measured on .*A100"):
        cost("a100-40gb", cost_model="tables")
    mixtral = Target(load_model("mixtral-8x7b"), load_gpu("rtx-4090"), cost_model="tables")
    with pytest.raises(ConfigError, match="no experts were measured"):
        mixtral.cost(NO_OVERHEAD)
    with pytest.raises(ConfigError, match="in 16 bits, not in float8"):
        cost("h100", cost_model="tables", dtype="float8")
    with pytest.raises(ConfigError, match="known are auto, tables, roofline"):
        cost("h100", cost_model="table")
