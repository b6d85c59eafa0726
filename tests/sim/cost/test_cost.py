"""Cost models: runs equal steps bit for bit, more work is never cheaper, fits recover the truth."""

import random
from dataclasses import replace

import numpy as np
import pytest

from sundog.actors.core.config import ConfigError
from sundog.sim.cost.calibrated import Calibrated, errors, fit, nonnegative_least_squares
from sundog.sim.cost.doubt import BETWEEN_MACHINES, FOUR_BITS, ROOFLINE, TABLES, UNFITTED, step_doubt
from sundog.sim.cost.overhead import HostOverhead, WithOverhead, host_overhead
from sundog.sim.cost.roofline import Roofline
from sundog.sim.cost.tables.model import TablesCost
from sundog.sim.cost.work import CostModel, StepWork
from sundog.sim.hardware.gpu import load_gpu
from sundog.sim.hardware.model import load_model
from sundog.sim.hardware.quantization import FP8, quantised
from tests.sim.roofline_points import POINTS, predicted_s

H100 = load_gpu("h100")


def roofline(name: str = "llama-3.1-8b", **options: object) -> Roofline:
    return Roofline(load_model(name), H100, **options)  # type: ignore[arg-type]


def tables(model: str = "llama-3.1-8b", gpu: str = "h100", **options: int) -> TablesCost:
    described = load_gpu(gpu)
    return TablesCost(load_model(model), described, described.key, **options)


MODELS: dict[str, CostModel] = {
    "roofline": roofline(),
    "mixtral": roofline("mixtral-8x7b", tensor_parallel_size=2),
    "fp8 cache": roofline("qwen3-14b", kv_dtype="float8"),
    "with overhead": WithOverhead(roofline("qwen3-0.6b"), host_overhead(False), launches_s=0.014),
    "tables": tables(),
    "tables of experts": tables("mixtral-8x7b", tensor_parallel_size=2),
    "tables, many key heads": tables("llama-2-7b", "a100"),
    "with hidden overhead": WithOverhead(tables(), host_overhead(True)),
    "latent attention": roofline("deepseek-v3", tensor_parallel_size=8),
    "windows and mxfp4 experts": roofline("gpt-oss-120b"),
    "windows of a vision model": roofline("gemma-3-27b", tensor_parallel_size=2),
    "calibrated": Calibrated(1e-3, 1.1e-6, 3.7e-9, 2.3e-6, 1e-10),
    "of an engine": Calibrated(
        1e-3,
        9e-6,
        per_context_token=3.7e-9,
        per_decode=2.3e-6,
        per_prefill_pair=1e-10,
        per_chunk=3e-5,
        per_chunk_context_token=4e-9,
        bends=((16.0, 1e-6), (64.0, 2e-6)),
        context_bends=((2048.0, 9e-9),),
    ),
}


def decode(num_decodes: int, context: int) -> StepWork:
    return StepWork(num_decodes, context, (), num_decodes)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_run_costs_what_its_steps_cost_bit_for_bit(name: str) -> None:
    """run_s[i] equals step_s of the i-th step exactly, for random batches and lengths."""
    model, rng = MODELS[name], random.Random(7)
    for _ in range(50):
        num_decodes, num_steps = rng.randint(1, 300), rng.randint(1, 200)
        context = num_decodes * rng.randint(1, 30_000) + rng.randint(0, 99)
        run = model.run_s(decode(num_decodes, context), num_steps)
        steps = [model.step_s(decode(num_decodes, context + i * num_decodes)) for i in range(num_steps)]
        assert run.dtype == np.float64
        assert run.tolist() == steps


@pytest.mark.parametrize("name", sorted(MODELS))
def test_more_work_never_costs_less(name: str) -> None:
    """More decodes, longer contexts, more prompt tokens: each at least as long.

    Measured attention may take a percent less for the same context of more requests.
    """
    model = MODELS[name]
    base = model.step_s(StepWork(8, 8000, ((256, 0),), 9))
    measured = "tables" in name or name == "with hidden overhead"
    for more in (
        StepWork(9, 8000, ((256, 0),), 10),
        StepWork(8, 9000, ((256, 0),), 9),
        StepWork(8, 8000, ((300, 0),), 9),
        StepWork(8, 8000, ((256, 512),), 9),
        StepWork(8, 8000, ((256, 0), (1, 0)), 10),
    ):
        assert model.step_s(more) >= base * (0.99 if measured else 1) > 0


def test_no_tokens_cost_nothing() -> None:
    """An empty step launches nothing."""
    for model in MODELS.values():
        assert model.step_s(StepWork(0, 0)) == 0.0


def test_a_lone_decode_is_bound_by_the_weights() -> None:
    """One decode of Llama-3.1-8B reads 16 GB: at least 4.8 ms of an H100's 3.35 TB/s."""
    read_s = load_model("llama-3.1-8b").weight_bytes() / 3.35e12
    assert read_s < MODELS["roofline"].step_s(decode(1, 100)) < 1.5 * read_s


def test_a_long_prefill_is_bound_by_arithmetic() -> None:
    """8,192 tokens of an 8B model take 131 TFLOP in projections: at least 0.13 s of an H100."""
    seconds = MODELS["roofline"].step_s(StepWork(0, 0, ((8192, 0),), 1))
    assert 2 * 8192 * 7.5e9 / 989.4e12 < seconds < 0.3


def test_two_ranks_are_faster_than_one_but_not_twice() -> None:
    """All-reduces and launches do not shrink."""
    one, two = (roofline(tensor_parallel_size=n).step_s(decode(64, 64_000)) for n in (1, 2))
    assert one / 2 < two < one


def test_few_tokens_read_few_experts() -> None:
    """One token of Mixtral reads 2 of 8 experts of a layer, many tokens read all."""
    model = roofline("mixtral-8x7b")
    expert_s = 2 * 3 * 4096 * 14336 / (3.35e12 * H100.efficiency.weight_bandwidth)
    ((layer, _),) = model.layers
    assert layer.linear_s(64, 64) - layer.linear_s(1, 1) == pytest.approx(6 * expert_s, rel=0.01)


def test_a_cache_of_eight_bits_halves_decode_attention() -> None:
    """Decode attention is bound by the bytes of the cache."""
    half = roofline(kv_dtype="float8")
    full, none = roofline(), decode(10, 0)
    read = decode(10, 1_000_000)
    ratio = (half.step_s(read) - half.step_s(none)) / (full.step_s(read) - full.step_s(none))
    assert ratio == pytest.approx(0.5)


def test_a_roofline_is_in_more_doubt_where_nothing_was_fitted() -> None:
    """Another GPU, format, cache or kind of layer: three times the range of a dense model on an H100."""
    llama = load_model("llama-3.1-8b")
    assert step_doubt(WithOverhead(roofline(), HostOverhead())) == ROOFLINE < UNFITTED
    for other in (
        Roofline(llama, load_gpu("mi300x")),
        Roofline(replace(llama, weights=FP8), H100),
        roofline(kv_dtype="float8"),
        roofline("gemma-2-9b"),
    ):
        assert step_doubt(other) == UNFITTED


def test_ranges_of_what_is_unlike_any_measured_are_as_wide_as_its_errors_were() -> None:
    """Experts by a roofline took 1.2 times as long on two ranks and 2.3 on eight; no machine has 16 GPUs."""
    pair = roofline("qwen3-30b-a3b", data_parallel_size=2)
    eight = roofline("mixtral-8x7b", tensor_parallel_size=8)
    assert 1.2 < 1 + step_doubt(pair) < 2.3 < 1 + step_doubt(eight)
    many = Roofline(load_model("llama-3.1-70b"), load_gpu("h100"), tensor_parallel_size=16)
    assert step_doubt(many) == ROOFLINE + BETWEEN_MACHINES
    assert step_doubt(tables("llama-3.1-70b", tensor_parallel_size=16)) >= TABLES + BETWEEN_MACHINES


def test_a_gpu_without_the_units_refuses_the_dtype() -> None:
    """The A100 has no 8-bit floating point units."""
    with pytest.raises(ConfigError, match="A100.*does not compute in float8"):
        Roofline(load_model("qwen3-8b"), load_gpu("a100"), dtype="float8")


@pytest.mark.parametrize("point", POINTS, ids=lambda p: f"{p.model}-{p.rate}")
def test_the_h100_fit_stays_within_six_percent(point: object) -> None:
    """Mean TPOT of real servers in a steady state, to which the efficiencies were fitted."""
    from tests.sim.roofline_points import Point

    assert isinstance(point, Point)
    assert predicted_s(point, host_overhead(async_scheduling=True)) * 1e3 == pytest.approx(
        point.tpot_ms, rel=0.06
    )


def test_host_overhead_adds_to_steps_and_bounds_those_without_a_graph() -> None:
    """A prefill of few tokens costs the host no more than a decode; hidden, only the gap is left."""
    inner = roofline()
    model = WithOverhead(inner, HostOverhead(gap_s=0.2, step_s=0.05, token_s=0.001))
    assert model.step_s(decode(4, 400)) == pytest.approx(inner.step_s(decode(4, 400)) + 0.254)
    for tokens, extra_s in ((1, 0.251), (16, 0.251), (512, 0.251), (513, 0.251)):
        prefill = StepWork(0, 0, ((tokens, 0),), 1)
        assert model.step_s(prefill) == pytest.approx(inner.step_s(prefill) + extra_s)
    launched = WithOverhead(inner, HostOverhead(), launches_s=0.5)
    assert launched.step_s(StepWork(0, 0, ((513, 0),), 1)) == 0.5 > launched.step_s(decode(4, 400))
    assert HostOverhead(eager_layer_s=0.01, eager_rank_layer_s=0.02).launches_s(3, 2) == 0.06
    hidden = WithOverhead(inner, HostOverhead(gap_s=0.001, step_s=0.002, token_s=1e-6, overlaps=True))
    assert hidden.step_s(decode(4, 400)) == pytest.approx(inner.step_s(decode(4, 400)) + 0.001)


def test_a_synchronous_host_works_between_two_steps() -> None:
    """Sixteen requests: 0.43 + 0.34 ms, and 12 + 20 microseconds each, 1.282 ms; planned ahead, 0.43."""
    inner, work = roofline("llama-3.1-8b"), decode(16, 16_000)
    step_s = inner.step_s(work)
    sync, ahead = (WithOverhead(inner, host_overhead(planned)) for planned in (False, True))
    assert sync.step_s(work) - step_s == pytest.approx(0.43e-3 + 0.34e-3 + 16 * 32e-6)
    assert ahead.step_s(work) - step_s == pytest.approx(0.43e-3)
    assert sync.run_s(work, 2)[0] == pytest.approx(sync.step_s(work))


@pytest.mark.parametrize("form", ["awq", "gptq"])
def test_weights_of_four_bits_may_take_three_times_as_long(form: str) -> None:
    """Which kernel a server takes for them decides; of 8 bits it is what it was."""
    stored = quantised(load_model("llama-3.1-8b"), form)
    assert step_doubt(Roofline(stored, H100)) == FOUR_BITS == 2.0
    assert step_doubt(Roofline(quantised(load_model("llama-3.1-8b"), "fp8"), H100)) == UNFITTED


def observations(truth: Calibrated, noise: float) -> list[tuple[StepWork, float]]:
    rng, rows = random.Random(3), []
    for _ in range(300):
        n = rng.randint(0, 40)
        chunks = tuple((rng.randint(1, 500), rng.randint(0, 900)) for _ in range(rng.randint(0, 2)))
        work = StepWork(n, n * rng.randint(1, 2000), chunks, n + len(chunks))
        if work.num_tokens:
            rows.append((work, truth.step_s(work) * rng.uniform(1 - noise, 1 + noise)))
    return rows


def test_calibration_recovers_the_model_that_made_the_steps() -> None:
    """Exactly without noise; within a few percent of every step with 5 % of it."""
    truth = Calibrated(2e-3, 3e-6, 4e-9, 5e-6, 2e-9)
    exact = fit(observations(truth, 0))
    assert np.allclose(errors(exact, observations(truth, 0)), 0, atol=1e-9)
    noisy = fit(observations(truth, 0.05))
    assert abs(errors(noisy, observations(truth, 0))).max() < 0.05


def test_calibration_never_makes_work_shorten_a_step() -> None:
    """Coefficients stay at zero or above, also where least squares alone would go below."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        a, b = rng.normal(size=(20, 5)), rng.normal(size=20)
        x = nonnegative_least_squares(a, b)
        gradient = a.T @ (b - a @ x)
        assert (x >= 0).all() and (gradient <= 1e-8).all()
        assert np.allclose(gradient[x > 0], 0, atol=1e-8)


def test_calibration_needs_an_observation() -> None:
    """Nothing to fit is an error, not a model of zeros."""
    with pytest.raises(ConfigError, match="cannot calibrate"):
        fit([(StepWork(0, 0), 1.0)])
