"""Measured tables: what was measured comes out, what was not lies between, and it is said."""

import itertools
import math

import numpy as np
import pytest

from actors.core.config import ConfigError
from sim.cost.overhead import NO_OVERHEAD, WithOverhead
from sim.cost.roofline import Roofline
from sim.cost.tables import TablesCost, has_tables
from sim.cost.tables.model import outside_measured
from sim.cost.tables.operators import (
    AllReduce,
    ContextAttention,
    Coverage,
    Experts,
    GenerationAttention,
    Products,
    around,
    load,
    log_interp,
)
from sim.cost.work import StepWork
from sim.hardware.gpu import known_gpus, load_gpu
from sim.hardware.model import known_models, load_model
from sim.target import Target

GPUS = [name for name in known_gpus() if has_tables(name)]
H100 = load("h100")


def model(name: str, gpu: str, ranks: int = 1) -> TablesCost:
    described = load_gpu(gpu)
    return TablesCost(load_model(name), described, described.key, tensor_parallel_size=ranks)


def test_the_data_centre_gpus_have_tables() -> None:
    """And a file of the user's own has none."""
    assert {"a100-80gb", "h100", "h200", "l40s"} <= set(GPUS)
    assert not has_tables("") and not has_tables("rtx-4090")


def test_a_measured_product_comes_out_as_measured() -> None:
    """At every m of a measured shape."""
    products = Products(H100, Coverage())
    points, seconds = H100["gemm"], H100["gemm_s"]
    for n, k in ((4096, 4096), (6144, 4096), (16384, 5120)):
        rows = (points[:, 1] == n) & (points[:, 2] == k)
        curve = dict(zip(products.ms.tolist(), products.curve(n, k), strict=True))
        assert rows.sum() > 50
        for m, measured_s in zip(points[rows][:, 0], seconds[rows], strict=True):
            assert curve[int(m)] == pytest.approx(float(measured_s), rel=1e-6)


def test_a_product_that_was_not_measured_lies_between_its_neighbours() -> None:
    """In both directions of its weights."""
    products = Products(H100, Coverage())
    small, large = products.curve(8192, 4096), products.curve(10240, 5120)
    between = products.curve(9000, 4500)
    large_m = products.ms >= 1024
    assert (small < between)[large_m].all() and (between < large)[large_m].all()


@pytest.mark.parametrize("known", [[2, 4, 8, 100]])
def test_the_sizes_around_a_size_are_its_neighbours_or_the_last_two(known: list[int]) -> None:
    """With the share of the second, by ratio."""
    assert around(4, known) == (4, 4, 0.0)
    assert around(5, known) == (4, 8, pytest.approx(math.log(5 / 4) / math.log(2)))
    assert around(200, known)[:2] == (8, 100) and around(200, known)[2] > 1
    assert around(1, known)[:2] == (2, 4) and around(1, known)[2] < 0


def test_straight_lines_in_logarithms_go_on_beyond_the_ends() -> None:
    """A power law is met exactly everywhere."""
    xs = np.array([1.0, 10.0, 100.0])
    for x in (0.1, 1.0, 3.0, 10.0, 5000.0):
        assert log_interp(x, xs, 2 * xs**1.5) == pytest.approx(2 * x**1.5)


def test_measured_attention_comes_out_as_measured() -> None:
    """Of a whole prompt, and of a batch of decodes."""
    context = ContextAttention(H100, 32, 8, 128, Coverage())
    points = H100["context"]
    rows = (points[:, 0] == 32) & (points[:, 1] == 8) & (points[:, 2] == 128)
    for point, seconds in zip(points[rows], H100["context_s"][rows], strict=True):
        assert context.seconds(int(point[3]), 0) == pytest.approx(float(seconds), rel=1e-6)
    generation = GenerationAttention(H100, 32, 8, 128, Coverage())
    points = H100["generation"]
    rows = (points[:, 0] == 32) & (points[:, 1] == 8) & (points[:, 2] == 128) & (points[:, 3] == 64)
    contexts, seconds_of = generation.curve(64)
    by_context = dict(zip(contexts.tolist(), seconds_of, strict=True))
    for point, seconds in zip(points[rows], H100["generation_s"][rows], strict=True):
        if point[4] + 1 in by_context:
            assert by_context[int(point[4]) + 1] == pytest.approx(float(seconds), rel=1e-6)


def test_a_prompt_in_chunks_has_the_pairs_of_the_whole() -> None:
    """So chunks cost at least the whole, and a later chunk more than an earlier one."""
    context = ContextAttention(H100, 32, 8, 128, Coverage())
    first, second = context.seconds(4096, 0), context.seconds(4096, 4096)
    assert second > 2 * first
    assert first + second == pytest.approx(context.seconds(8192, 0), rel=0.25)


def test_many_key_heads_are_priced_as_many_requests() -> None:
    """32 key heads read what four requests with 8 of them read."""
    many = GenerationAttention(H100, 32, 32, 128, Coverage())
    few = GenerationAttention(H100, 8, 8, 128, Coverage())
    assert np.array_equal(many.curve(16)[1], few.curve(64)[1])


def test_an_all_reduce_takes_longer_for_more_bytes() -> None:
    """From the largest measured size on in proportion."""
    reduce = AllReduce(H100, 4, Coverage())
    times = [reduce.seconds(2**power) for power in range(12, 31)]
    assert all(b > a * 0.99 for a, b in itertools.pairwise(times))
    assert times[-1] / times[-2] == pytest.approx(2, rel=0.1)


def test_experts_of_a_model_that_was_not_measured_take_their_share() -> None:
    """Half as wide, half the time."""
    whole = Experts(H100, (4096, 14336, 2, 8), 1, Coverage())
    half = Experts(H100, (4096, 7168, 2, 8), 1, Coverage())
    assert half.seconds(2048) == pytest.approx(whole.seconds(2048) / 2, rel=0.3)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("name", known_models())
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
        # Ranks over PCIe reduce several times slower than the roofline's link.
        assert 0.4 < ratio < (2.5 if ranks == 1 else 5), (work, ratio)


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
    assert far == {}
    tables.step_s(StepWork(0, 0, ((131072, 0),), 1))
    assert outside_measured(tables) == {"context attention": 8.0}
    roofline = Roofline(load_model("llama-2-7b"), load_gpu("h100"))
    assert outside_measured(roofline) == {}


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
    assert isinstance(cost("rtx-4090"), Roofline)
    with pytest.raises(ConfigError, match="no kernels were measured on .*4090"):
        cost("rtx-4090", cost_model="tables")
    with pytest.raises(ConfigError, match="in 16 bits, not in float8"):
        cost("h100", cost_model="tables", dtype="float8")
    with pytest.raises(ConfigError, match="known are auto, tables, roofline"):
        cost("h100", cost_model="table")
