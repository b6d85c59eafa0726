"""Laws of every cost model, for random models, GPUs, formats and parallelism, always the same ones.

Measured tables keep them within what was measured: a percent where kernels change, an eighth where a chunk is
halved, for tiles are wasted on some numbers of rows and on every decode beside a chunk.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sundog.sim.cost.composed import Pipeline
from sundog.sim.cost.overhead import NO_OVERHEAD, host_overhead
from sundog.sim.cost.tables.attention import HOPPER
from sundog.sim.cost.work import StepWork
from sundog.sim.hardware.attention import Heads, Latent
from sundog.sim.hardware.gpu import known_gpus
from sundog.sim.hardware.memory import plan_memory
from sundog.sim.hardware.quantization import BLOCK_FP8, FORMATS
from sundog.sim.hardware.shape import Experts, Layer, Mlp, ModelShape
from tests.sim.cost.random_targets import Case, faster, made_cases, same_work

EXACT, MEASURED, HALVED = 1e-9, 0.01, 0.12


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return made_cases()


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_the_cases_are_of_all_kinds(cases: list[Case]) -> None:
    """Tables, rooflines, stages, ranks that share experts, latents, windows, chunks, formats."""
    assert sum(not case.is_roofline for case in cases) > 10
    assert sum(isinstance(case.cost, Pipeline) for case in cases) > 15
    assert {case.target.gpu.key for case in cases} == set(known_gpus())
    for kind in (
        lambda case: case.target.data_parallel_size > 1,
        lambda case: case.target.model.has_windows,
        lambda case: any(layer.attention.is_chunked for layer, _ in case.target.model.layers),
        lambda case: any(not isinstance(layer.attention, Heads) for layer, _ in case.target.model.layers),
        lambda case: case.target.model.weights is not None,
    ):
        assert sum(map(kind, cases)) >= 2


def test_a_step_takes_time_and_a_run_takes_its_steps(cases: list[Case]) -> None:
    """Above 0 and finite; a run's steps are those of one by one, bit for bit."""
    for case in cases:
        cost = case.cost
        for work in case.works:
            assert 0 < cost.step_s(work) < math.inf, case
        work, each = same_work(7, 8190), []
        first = work
        for _ in range(20):
            each.append(cost.step_s(work))
            work = work.next_decodes()
        assert cost.run_s(first, 20).tolist() == cost.few_s(first, 20) == each, case


def test_more_of_anything_never_takes_less(cases: list[Case]) -> None:
    """One more decode, longer contexts, a longer chunk, a chunk behind more tokens."""
    for case in cases:
        cost, slack = case.cost, EXACT if case.is_roofline else MEASURED
        forgets = any(layer.attention.is_chunked for layer, _ in case.target.model.layers)
        for num_decodes, context, chunks in case.steps:
            base_s = cost.step_s(same_work(num_decodes, context, chunks)) * (1 - slack)
            assert cost.step_s(same_work(num_decodes + 1, context, chunks)) >= base_s, case
            for more in () if forgets else (1, 16, 1000):  # a chunk of attention begins anew
                assert cost.step_s(same_work(num_decodes, context + more, chunks)) >= base_s, case
            for (new, before), *rest in [chunks] if chunks else []:
                longer = same_work(num_decodes, context, ((new + 63, before), *rest))
                assert cost.step_s(longer) >= base_s, case
                later = same_work(num_decodes, context, ((new, before + 500), *rest))
                assert forgets or cost.step_s(later) >= base_s, case


def test_two_halves_of_a_chunk_take_at_least_the_whole(cases: list[Case]) -> None:
    """On the GPU; a host that must launch kernels one by one for the whole alone makes it otherwise.

    On Hopper only without decodes, which cost less beside a half that the narrow kernel takes.
    """
    for case in cases:
        cost = case.cost
        slack = EXACT if case.is_roofline else HALVED
        has_wide_tiles = not case.is_roofline and int(case.target.gpu.compute_capability) == HOPPER
        for num_decodes, context, chunks in case.steps:
            if has_wide_tiles:
                num_decodes, context = 0, 0
            for (new, before), *rest in [chunks] if chunks and chunks[0][0] > 1 else []:
                half = new // 2
                first = same_work(num_decodes, context, ((half, before), *rest))
                second = StepWork(0, 0, ((new - half, before + half),), 1)
                whole = same_work(num_decodes, context, chunks)
                halves_s = cost.step_s(first) + cost.step_s(second)
                assert halves_s >= cost.step_s(whole) * (1 - slack), case


def test_the_host_only_adds(cases: list[Case]) -> None:
    """Steps with its share take longer than their kernels, whether it plans ahead or not."""
    for case in cases[::5]:
        ahead, after = (case.target.cost(host_overhead(planned)) for planned in (True, False))
        for work in case.works:
            assert case.cost.step_s(work) < ahead.step_s(work), case
            assert case.cost.step_s(work) < after.step_s(work), case


def test_a_machine_that_is_faster_in_everything_is_faster(cases: list[Case]) -> None:
    """As rooflines price it, which is how a GPU of a user's file is priced."""
    rng = random.Random(1)
    for case in cases:
        target = replace(case.target, cost_model="roofline")
        slow, fast = target.cost(NO_OVERHEAD), replace(target, gpu=faster(target.gpu, rng)).cost(NO_OVERHEAD)
        for work in case.works:
            assert fast.step_s(work) <= slow.step_s(work) * (1 + EXACT), case


def chooses(layer: Layer) -> bool:
    return isinstance(layer.attention, Latent) and layer.attention.indexer is not None


def test_no_step_is_shorter_than_reading_and_computing_take(cases: list[Case]) -> None:
    """Head, weights and keys at the data sheet's bandwidth, arithmetic at its peak; of each rank."""
    for case in cases:
        target, cost = case.target, case.cost
        model, gpu, ranks = target.model, target.gpu, target.tensor_parallel_size
        peak = max(gpu.peak_flops_per_s.values())
        for work in case.works:
            num_bytes = float(model.embedding_params // ranks * 2)
            if not model.has_windows and not any(chooses(layer) for layer, _ in model.layers):
                num_bytes += model.kv_bytes_per_token(target.kv_dtype, ranks) * work.decode_context_tokens
            used = model.embedding_params / ranks * work.num_samples
            for layer, count in model.layers:
                attention = layer.attention.num_weights(model.hidden_size)
                dense, expert = (
                    layer.mlp.dense_weights(model.hidden_size),
                    layer.mlp.expert_weights(model.hidden_size),
                )
                split = ranks * target.data_parallel_size
                num_bytes += count * attention * model.bytes_per_weight(layer, "attention", 2) / ranks
                num_bytes += count * dense * model.bytes_per_weight(layer, "dense", 2) / ranks
                chosen = layer.mlp.per_token * expert / split
                num_bytes += count * chosen * model.bytes_per_weight(layer, "experts", 2)
                used += count * ((attention + dense) / ranks + chosen) * work.num_tokens
            seconds = cost.step_s(work)
            assert seconds > num_bytes / gpu.memory_bandwidth_bytes_per_s, case
            assert seconds > 2 * used / peak, case


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_a_step_of_few_tokens_reads_no_more_than_all_experts(cases: list[Case]) -> None:
    """Between a dense model of the active parameters and one of all of them, same fixed times."""
    found = 0
    for case in cases:
        model = replace(case.target.model, weights=None)
        if not model.has_experts or case.target.data_parallel_size > 1:
            continue
        target = replace(case.target, cost_model="roofline", expert_parallel=False)
        active, whole = (
            replace(model, layers=tuple(_dense(model, everything))) for everything in (False, True)
        )
        for num_decodes in (1, 4, 16):
            work = same_work(num_decodes, 100)
            low, middle, high = (
                replace(target, model=each).cost(NO_OVERHEAD).step_s(work) for each in (active, model, whole)
            )
            assert low * 0.99 <= middle <= high * 1.01, case
            found += 1
    assert found > 20


def _dense(model: ModelShape, everything: bool) -> Iterator[tuple[Layer, int]]:
    """Layers whose MLP has the neurons that a token meets, or all of them."""
    for layer, count in model.layers:
        mlp = layer.mlp
        if isinstance(mlp, Experts):
            num = mlp.num_experts if everything else mlp.per_token
            yield replace(layer, mlp=Mlp(num * mlp.inner + mlp.shared)), count
        else:
            yield layer, count


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_smaller_weights_and_keys_are_never_slower_to_read(cases: list[Case]) -> None:
    """Every format against 16 bits for one decode, and a cache of 8 bits in every step, by roofline."""
    for case in cases:
        model = replace(case.target.model, weights=None)
        target = replace(case.target, model=model, cost_model="roofline", kv_dtype=None)
        lone, plain = same_work(1, 1000), target.cost(NO_OVERHEAD)
        for form in (*FORMATS.values(), BLOCK_FP8):
            quantised = replace(target, model=replace(model, weights=form)).cost(NO_OVERHEAD)
            assert quantised.step_s(lone) <= plain.step_s(lone), (case, form)
        small = replace(target, kv_dtype="float8").cost(NO_OVERHEAD)
        for work in case.works:
            assert small.step_s(work) <= plain.step_s(work) * (1 + EXACT), case


def test_windows_never_cost_more_than_attention_to_everything(cases: list[Case]) -> None:
    """Neither time nor blocks, chunked windows included."""
    found = 0
    for case in cases:
        model, ranks = case.target.model, case.target.tensor_parallel_size
        if not model.has_windows:
            continue
        layers = tuple(
            (replace(layer, attention=replace(layer.attention, window=None, is_chunked=False)), count)
            for layer, count in model.layers
        )
        full = replace(model, layers=layers)
        target = replace(case.target, cost_model="roofline")
        windowed, whole = (replace(target, model=each).cost(NO_OVERHEAD) for each in (model, full))
        for work in case.works:
            assert windowed.step_s(work) <= whole.step_s(work) * (1 + EXACT), case
        roomy = replace(target.gpu, memory_bytes=4 * 10**13)
        few, many = (
            plan_memory(each, roomy, tensor_parallel_size=ranks).num_blocks for each in (full, model)
        )
        assert many >= few, case
        found += 1
    assert found > 20


def test_a_larger_model_takes_longer_and_leaves_fewer_blocks(cases: list[Case]) -> None:
    """A layer of each kind more, twice the vocabulary, twice the neurons."""
    for case in cases:
        target, model = replace(case.target, cost_model="roofline"), case.target.model
        ranks, groups = target.tensor_parallel_size, target.data_parallel_size
        roomy, base = replace(target.gpu, memory_bytes=4 * 10**13), target.cost(NO_OVERHEAD)
        num_blocks = plan_memory(
            model, roomy, tensor_parallel_size=ranks, data_parallel_size=groups
        ).num_blocks
        for larger in (
            replace(model, layers=tuple((layer, count + 1) for layer, count in model.layers), order=()),
            replace(model, vocab_size=2 * model.vocab_size),
            replace(
                model,
                layers=tuple(
                    (replace(layer, mlp=replace(layer.mlp, inner=2 * layer.mlp.inner)), count)
                    for layer, count in model.layers
                ),
            ),
        ):
            memory = plan_memory(larger, roomy, tensor_parallel_size=ranks, data_parallel_size=groups)
            assert memory.num_blocks < num_blocks, case
            cost = replace(target, model=larger).cost(NO_OVERHEAD)
            for work in case.works:
                assert cost.step_s(work) >= base.step_s(work) * (1 - EXACT), case


def test_ranks_share_weights(cases: list[Case]) -> None:
    """Twice as many hold half each, and what all must hold: no less than half, no more than 3/4."""
    for case in cases:
        model, ranks = case.target.model, case.target.tensor_parallel_size
        held = model.weight_bytes(None, ranks)
        if model.num_heads % (2 * ranks) == 0:
            assert held // 2 <= model.weight_bytes(None, 2 * ranks) <= 0.75 * held, case
