"""Layers of several kinds by measured tables: heads, latents, sparse attention, linear attention."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sundog.sim.cost.overhead import NO_OVERHEAD, WithOverhead
from sundog.sim.cost.roofline import Roofline
from sundog.sim.cost.tables.attention import ContextAttention, GenerationAttention, MixedAttention
from sundog.sim.cost.tables.experts import ExpertsOnRank, ExpertTables
from sundog.sim.cost.tables.interpolate import Lines, load, log_interp
from sundog.sim.cost.tables.kinds import WindowAttention, kinds_of
from sundog.sim.cost.tables.layers import SMALL_KERNEL_S, TOP_K_S, DerivedWindow, TablesOfGpu
from sundog.sim.cost.tables.left_out import LEFT_OUT
from sundog.sim.cost.tables.model import TablesCost, unlike_tables
from sundog.sim.cost.tables.products import AllReduce, Collective, Products
from sundog.sim.cost.work import Coverage, StepWork
from sundog.sim.hardware.attention import GatedDelta, Heads, Latent
from sundog.sim.hardware.gpu import load_gpu
from sundog.sim.hardware.memory import block_of_states, plan_memory
from sundog.sim.hardware.model import load_model
from sundog.sim.hardware.quantization import AWQ, BLOCK_FP8, FP8
from sundog.sim.target import Target
from tests import warm
from tests.sundog.test_runs import sundog

KINDS = (
    "deepseek-v3",
    "gpt-oss-120b",
    "deepseek-v3.2",
    "glm-5",
    "kimi-k2-instruct",
    "qwen3-next-80b-a3b",
    "minimax-m2.5",
)


def kernels(name: str, gpu: str = "h200", **options: object) -> TablesCost:
    target = Target(load_model(name), load_gpu(gpu), **options)  # type: ignore[arg-type]
    cost = target.cost(NO_OVERHEAD)
    assert isinstance(cost, WithOverhead) and isinstance(cost.model, TablesCost)
    return cost.model


@pytest.mark.parametrize(("name", "ranks"), [("llama-3.1-8b", 1), ("mixtral-8x7b", 2)])
def test_a_model_of_one_kind_takes_the_sum_of_its_kernels_bit_for_bit(name: str, ranks: int) -> None:
    """Products, small kernels, experts, all-reduces, attention and the head, as they stand in the tables."""
    gpu, tables, none = load_gpu("h100"), load("h100"), Coverage()
    model, cost = load_model(name), kernels(name, "h100", tensor_parallel_size=ranks)
    layer, count = model.layers[0]
    assert isinstance(layer.attention, Heads)
    heads, kv_heads, dim = layer.attention.num_heads // ranks, layer.attention.num_kv_heads // ranks, 128
    hidden, products = model.hidden_size, Products(tables, gpu, none)
    curve = products.curve((heads + 2 * kv_heads) * dim, hidden) + products.curve(hidden, heads * dim)
    if inner := layer.mlp.shared // ranks:
        curve = curve + products.curve(2 * inner, hidden) + products.curve(hidden, inner)
    sizes = products.ms.astype(float).tolist()
    head = products.curve(model.vocab_size // ranks, hidden).tolist()
    router = products.curve(32, hidden).tolist()
    bandwidth = gpu.memory_bandwidth_bytes_per_s * gpu.efficiency.weight_bandwidth
    context = ContextAttention(tables, heads, kv_heads, dim, none)
    generation = GenerationAttention(tables, heads, kv_heads, dim, gpu, none)
    mixed = MixedAttention(context, generation, gpu, heads, kv_heads)
    for work in (StepWork(16, 16_000, (), 16), StepWork(8, 9000, ((640, 100),), 9)):
        tokens, samples = work.num_tokens, work.num_samples
        layer_s, num_small = log_interp(tokens, sizes, curve.tolist()), 4
        if layer.mlp.num_experts > 1:
            # No product has fewer than 32 columns, and experts were timed with their activation.
            layer_s, num_small = layer_s + log_interp(tokens, sizes, router), 3
        layer_s += num_small * SMALL_KERNEL_S
        layer_s += tokens * 2 * (3 * layer.mlp.inner_per_token // ranks + 8 * hidden) / bandwidth
        if layer.mlp.num_experts > 1:
            key = ExpertsOnRank(hidden, layer.mlp.inner, layer.mlp.per_token, layer.mlp.num_experts, ranks, 1)
            layer_s += TOP_K_S + ExpertTables("h100", gpu, key, None, none).seconds(tokens)
        if ranks > 1:
            layer_s += 2 * AllReduce(tables, gpu, ranks, none).seconds(tokens * hidden)
        logits_s = log_interp(samples, sizes, head) + 2 * samples * model.vocab_size * 4 / bandwidth
        if ranks > 1:
            logits_s += Collective(load("h100-experts"), "gather", gpu, ranks, none).seconds(
                samples * model.vocab_size
            )
        step_s = layer_s * count + logits_s
        if work.chunks:
            step_s += count * mixed.seconds(work.chunks, work.num_decodes, float(work.decode_context_tokens))
        else:
            xs, ys = generation.curve(work.num_decodes)
            step_s += Lines(xs, ys * count).at(work.decode_context_tokens / work.num_decodes)
        assert cost.step_s(work) == step_s


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("gpu", ["h100", "h200", "b200"])
def test_every_kind_is_priced_near_its_roofline(name: str, gpu: str) -> None:
    """Eight ranks, whose small kernels a roofline knows little of; prompts that choose keys take most."""
    tables = kernels(name, gpu, tensor_parallel_size=8)
    roofline = Roofline(load_model(name), load_gpu(gpu), tensor_parallel_size=8)
    for work in (
        StepWork(64, 64 * 1500, (), 64),
        StepWork(256, 256 * 4000, (), 256),
        StepWork(0, 0, ((8192, 0),), 1),
    ):
        ratio = tables.step_s(work) / roofline.step_s(work)
        assert 0.5 < ratio < 4.5, (work, ratio)


@pytest.mark.parametrize("name", KINDS)
def test_a_run_takes_its_steps_bit_for_bit_in_every_kind(name: str) -> None:
    """One by one, a few at a time and all at once."""
    cost, work, each = kernels(name, tensor_parallel_size=4), StepWork(9, 9 * 3000, (), 9, 400), []
    plain = replace(work, num_shared_tokens=0)
    for first in (work, plain):
        each, step = [], first
        for _ in range(12):
            each.append(cost.step_s(step))
            step = step.next_decodes()
        assert cost.run_s(first, 12).tolist() == cost.few_s(first, 12) == each


def test_keys_that_are_chosen_bound_what_a_long_context_costs() -> None:
    """From 4,000 to 64,000 tokens attention over all keys grows several times as much."""
    slopes = {}
    for name in ("deepseek-v3", "deepseek-v3.2"):
        cost = kernels(name, tensor_parallel_size=8)
        near, far = (cost.step_s(StepWork(32, 32 * context, (), 32)) for context in (4000, 64_000))
        slopes[name] = far - near
    assert 0 < slopes["deepseek-v3.2"] < slopes["deepseek-v3"] / 3


def test_layers_with_a_window_cost_the_same_beyond_it() -> None:
    """Of gpt-oss every other layer sees 128 tokens, in prompts as well."""
    model, gpu = load_model("gpt-oss-20b"), load_gpu("h100")
    own = tuple(pair for pair in model.layers if pair[0].attention.window is not None)
    full = tuple(pair for pair in model.layers if pair[0].attention.window is None)
    windowed, whole = (TablesCost(replace(model, layers=each, order=()), gpu, "h100") for each in (own, full))
    near, far = StepWork(32, 32 * 1000, (), 32), StepWork(32, 32 * 50_000, (), 32)
    assert windowed.step_s(near) == pytest.approx(windowed.step_s(far), rel=0.01)
    assert whole.step_s(far) > 2 * whole.step_s(near)
    early, late = StepWork(0, 0, ((2048, 0),), 1), StepWork(0, 0, ((2048, 30_000),), 1)
    assert windowed.step_s(late) == pytest.approx(windowed.step_s(early), rel=0.02)
    assert whole.step_s(late) > 1.5 * whole.step_s(early)
    assert TablesCost(model, gpu, "h100").families == {"experts", "window"}


def test_linear_layers_cost_the_same_at_any_context() -> None:
    """Only the twelve layers by heads grow; nothing is kept of a token in the others, but of a request."""
    model = load_model("qwen3-next-80b-a3b")
    kinds = {type(layer.attention): count for layer, count in model.layers}
    assert kinds == {GatedDelta: 36, Heads: 12}
    own = tuple(pair for pair in model.layers if isinstance(pair[0].attention, GatedDelta))
    linear = replace(model, layers=own)
    cost = TablesCost(linear, load_gpu("h100"), "h100")
    assert cost.step_s(StepWork(8, 800, (), 8)) == cost.step_s(StepWork(8, 800_000, (), 8))
    assert model.kv_bytes_per_token() == 12 * 2 * 2 * 256 * 2
    # 32 heads of 128 x 128 numbers, and three inputs of the convolution of 8,192, in bfloat16.
    assert model.request_bytes(1, "bfloat16") == 36 * (32 * 128 * 128 * 2 + 3 * 8192 * 2)
    newer = load_model("Qwen/Qwen3.6-35B-A3B")
    assert newer.request_bytes(1, "bfloat16") == 30 * (32 * 128 * 128 * 4 + 3 * 8192 * 2), "float32 by config"
    assert newer.request_bytes(2, "bfloat16") == newer.request_bytes(1, "bfloat16") // 2


# Blocks that servers' logs of vLLM name ("Setting attention block size to N tokens"), and by how much their
# states were padded then; worked by hand: a state's bytes, over the bytes of a token in a layer, up to 16.
@pytest.mark.parametrize(
    ("name", "kv_dtype", "ranks", "size"),
    [
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", None, 1, 544),  # 1,097,728 / 2,048 = 536
        ("Qwen/Qwen3.5-35B-A3B", None, 1, 1056),  # 2,146,304 / 2,048 = 1,048, padded by 0.76 %
        ("Qwen/Qwen3.5-35B-A3B", "float8", 1, 2096),  # 2,146,304 / 1,024 = 2,096
        ("Qwen/Qwen3.6-27B", None, 1, 784),  # 3,207,168 / 4,096 = 783, padded by 0.13 %
        ("Qwen/Qwen3.5-9B", None, 1, 528),  # 2,146,304 / 4,096 = 524
        ("Qwen/Qwen3.5-35B-A3B", None, 4, 528),  # 536,576 / 1,024: a rank has a head of keys at least
        ("qwen3-8b", None, 1, 16),
    ],
)
def test_a_block_holds_a_state_as_in_servers_logs(
    name: str, kv_dtype: str | None, ranks: int, size: int
) -> None:
    model = load_model(name)
    assert block_of_states(model, block_size=16, tensor_parallel_size=ranks, kv_dtype=kv_dtype) == size


def test_a_linear_layer_takes_its_states_traffic_and_its_recurrences_arithmetic() -> None:
    """By a roofline: a decode adds a state read and written, a prompt eight operations for each number."""
    model, gpu = load_model("qwen3.5-35b-a3b"), load_gpu("h100")
    own = tuple(pair for pair in model.layers if isinstance(pair[0].attention, GatedDelta))
    ((layer, count),) = Roofline(replace(model, layers=own, order=()), gpu).layers
    assert count == 30
    state_bytes = 32 * 128 * 128 * 4 + 3 * 8192 * 2
    bandwidth = gpu.memory_bandwidth_bytes_per_s * gpu.efficiency.kv_bandwidth
    assert layer.decode_request_s == pytest.approx(2 * state_bytes / bandwidth)
    assert layer.decode_token_s == 0.0
    flops = gpu.peak("bfloat16") * gpu.efficiency.attention_flops
    for before in (0, 100_000):
        assert layer.prefill_attention_s(((1000, before),)) == pytest.approx(
            1000 * 8 * 32 * 128 * 128 / flops
        )


def test_states_take_whole_blocks() -> None:
    """A state of 30 linear layers takes three blocks of the ten others; caching keeps two of a request."""
    model, gpu = load_model("qwen3.5-35b-a3b"), load_gpu("h200")
    terms: dict[str, Any] = {"block_size": 1056, "max_num_batched_tokens": 8192}
    few, more, two = (
        plan_memory(model, gpu, max_num_seqs=seqs, states_per_request=states, **terms)
        for seqs, states in ((1, 1), (11, 1), (11, 2))
    )
    logits_bytes = 10 * 2 * 248_320 * 4
    by_hand = 10 * 3 + logits_bytes / few.block_bytes
    assert few.block_bytes == 1056 * 10 * 2 * 2 * 256 * 2
    assert few.num_blocks - more.num_blocks == pytest.approx(by_hand, abs=1)
    assert more.num_blocks - two.num_blocks == 11 * 3


def test_states_of_requests_take_memory_from_blocks() -> None:
    """More requests leave fewer blocks, until as many as there is room for are counted."""
    model, gpu = load_model("qwen3-next-80b-a3b"), load_gpu("h200")
    blocks = [
        plan_memory(model, gpu, max_num_seqs=seqs, tensor_parallel_size=2).num_blocks
        for seqs in (8, 64, 256, 1024)
    ]
    assert blocks[0] > blocks[1] > blocks[2] and all(a >= b > 0 for a, b in itertools.pairwise(blocks))


def test_latents_and_what_the_indexer_keeps_are_whole_on_every_rank() -> None:
    """576 numbers of 16 bits a token and layer; with an indexer 128 of 8 bits and a scale more."""
    dense, sparse = load_model("deepseek-v3"), load_model("deepseek-v3.2")
    assert dense.kv_bytes_per_token(ranks=8) == 61 * 576 * 2
    assert sparse.kv_bytes_per_token(ranks=8) == 61 * (576 * 2 + 132)


def test_a_cache_of_eight_bits_stays_with_tables_where_it_was_measured() -> None:
    """Latents, heads, windows at other times; on an L40S windows go by a roofline, and say so."""
    work = StepWork(64, 64 * 8000, (), 64)
    for name in ("deepseek-v3", "glm-5", "llama-3.1-70b", "minimax-m2.5", "gpt-oss-120b"):
        sixteen, eight = (kernels(name, tensor_parallel_size=8, kv_dtype=each) for each in (None, "float8"))
        assert 0.7 < eight.step_s(work) / sixteen.step_s(work) < 1.4
        assert eight.step_s(work) != sixteen.step_s(work)
    target = Target(load_model("gpt-oss-20b"), load_gpu("l40s"), kv_dtype="float8")
    assert any("with a cache of 16 bits" in text for text in target.remarks)


@pytest.mark.parametrize("gpu", ["h100", "h200", "b200"])
def test_long_contexts_of_eight_bits_are_read_in_little_more_than_half_the_time(gpu: str) -> None:
    """64 decodes of 32,768 tokens, attention alone: between 0.5 and 0.75 of what 16 bits take."""
    sixteen, eight = (kernels("llama-3.1-8b", gpu, kv_dtype=each).layers[0] for each in (None, "float8"))
    assert eight.attention.row_bytes == sixteen.attention.row_bytes / 2
    assert 0.5 < eight.decodes(64).at(32_768) / sixteen.decodes(64).at(32_768) < 0.75


def test_a_server_with_a_cache_of_eight_bits_is_priced_by_tables(tmp_path: Path) -> None:
    """Its replay says nothing of a roofline."""
    trace = tmp_path / "one.csv"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,600,2\n")
    said = sundog("replay", str(trace), "--gpu", "h200", "--kv-cache-dtype", "fp8").stderr
    assert "roofline" not in said


@pytest.mark.parametrize("gpu", ["h100", "h200", "b200"])
def test_products_by_blocks_save_what_they_saved_where_a_graph_was_timed(gpu: str) -> None:
    """DeepSeek-V3's attention with 128 heads and one decode: 210 us in 16 bits, 154 by blocks on an H100."""
    saved = {"h100": 56e-6, "h200": 31e-6, "b200": 8e-6}[gpu]
    described = load_gpu(gpu)
    plain = Products(load(gpu), described, Coverage())
    blocks = Products(load(f"{gpu}-block-fp8"), described, Coverage(), BLOCK_FP8)
    taken = [
        sum(float(each.curve(n, k)[0]) for n, k in ((2112, 7168), (24576, 1536), (7168, 16384)))
        for each in (plain, blocks)
    ]
    assert taken[0] - taken[1] == pytest.approx(saved, abs=17e-6)


def test_no_format_of_blocks_costs_a_host_that_a_graph_does_without() -> None:
    """A small product takes no longer than 15 microseconds, where the package's own rows say 58 to 270."""
    for gpu in ("h100", "h200", "b200", "rtx-pro-6000"):
        products = Products(load(f"{gpu}-block-fp8"), load_gpu(gpu), Coverage(), BLOCK_FP8)
        assert float(products.curve(1024, 3072)[0]) < 15e-6


def test_a_model_with_layers_of_several_formats_is_priced() -> None:
    """Experts in float8 beside attention in 16 bits, and one layer left in 16 bits whole."""
    plain = load_model("qwen3-30b-a3b")
    mixed = replace(plain, weights=FP8.without("attention"))
    layer, count = plain.layers[0]
    left = replace(layer, unquantised=frozenset(("attention", "experts")))
    several = replace(plain, weights=FP8, layers=((layer, count - 1), (left, 1)))
    gpu, work = load_gpu("b200"), StepWork(64, 64_000, (), 64)
    models = plain, several, replace(plain, weights=FP8)
    costs = [TablesCost(each, gpu, "b200").step_s(work) for each in models]
    assert costs[0] > costs[1] > costs[2]
    assert TablesCost(mixed, gpu, "b200").step_s(work) < costs[0]


def test_what_was_not_measured_is_named() -> None:
    """Windows, formats, sizes of latents, kinds on GPUs where they were not timed."""
    for name in ("gemma-2-2b", "gemma-3-27b", "llama-4-scout-17b-16e"):
        assert unlike_tables(load_model(name), "h100") == "attention with this window size was not measured"
    awq = replace(load_model("llama-3.1-8b"), weights=AWQ)
    assert unlike_tables(awq, "h100") == "kernels were measured in 16 bits, not in awq"
    for name, gpu, kind in (
        ("glm-5", "rtx-pro-6000", "sparse attention"),
        ("deepseek-v3", "a100-80gb", "latent attention"),
        ("qwen3-next-80b-a3b", "a100-80gb", "linear attention"),
    ):
        assert unlike_tables(load_model(name), gpu) == f"{kind} was not measured"
    model = load_model("deepseek-v3")
    layer, count = model.layers[0]
    assert isinstance(layer.attention, Latent)
    other = replace(layer, attention=replace(layer.attention, kv_rank=256))
    smaller = replace(model, layers=((other, count),))
    assert unlike_tables(smaller, "h100") == "latent attention was not measured"


def test_derived_windows_are_near_those_that_were_measured() -> None:
    """Of gpt-oss' heads on five GPUs with both: decodes as stated in `left_out.py`, and two prompts."""
    attention = load_model("gpt-oss-20b").layers[0][0].attention
    assert isinstance(attention, Heads) and attention.window == 128
    for name in ("h100", "h200", "b200", "l40s", "rtx-pro-6000"):
        gpu, tables = load_gpu(name), kinds_of(name)
        derived = DerivedWindow(TablesOfGpu(name, gpu, 1, Coverage(), "bfloat16"), attention)
        measured = WindowAttention(tables, attention, 64, 8, Coverage())
        errors = []
        for num in (1, 4, 16, 64, 256):
            curves = [Lines(*kind.curve(num)) for kind in (derived, measured)]
            errors += [abs(curves[0].at(c) / curves[1].at(c) - 1) for c in (64.0, 200.0, 1000.0, 8000.0)]
        assert sum(errors) / len(errors) < LEFT_OUT["derived window"]
        for length in (512, 2048):
            assert derived.chunks_s(((length, 0),)) == pytest.approx(
                measured.chunks_s(((length, 0),)), rel=0.21
            )


def test_a_derived_window_costs_no_more_than_it_sees() -> None:
    """On an A100 a long context costs what the window costs, and a late chunk what an early one does."""
    cost = kernels("gpt-oss-20b", "a100-80gb")
    windows, whole = cost.layers
    assert isinstance(windows.attention, DerivedWindow) and not isinstance(whole.attention, DerivedWindow)
    assert windows.decodes(16).at(4000.0) == windows.decodes(16).at(400.0)
    assert whole.decodes(16).at(4000.0) > 1.5 * whole.decodes(16).at(400.0)
    late, early = (windows.attention.seconds(((512, before),), 0, 0) for before in (8000, 1000))
    assert late == early > windows.attention.seconds(((512, 0),), 0, 0)
    assert "derived window" in cost.families and cost.left_out_error == LEFT_OUT["derived window"]
    assert unlike_tables(load_model("gemma-3-27b"), "a100-80gb") is not None


def test_every_family_of_kernels_has_an_error_of_its_own() -> None:
    """Errors of what was left out say how wide a range is due; dense models in 16 bits have none."""
    assert kernels("llama-3.1-8b").families == frozenset() and kernels("llama-3.1-8b").left_out_error == 0
    found = kernels("glm-5", tensor_parallel_size=8, expert_parallel=True).families
    assert found == {"sparse", "experts", "whole experts", "block products"}
    assert kernels("qwen3-next-80b-a3b", tensor_parallel_size=2).families == {"delta", "experts alike"}
    assert kernels("deepseek-v3", tensor_parallel_size=8).left_out_error == LEFT_OUT["latent"]
    assert "latent" in kinds_of("h100") and not kinds_of("a100-80gb")


OF_TODAY = ("minimax-m2.5", "zai-org/GLM-5-FP8", "deepseek-ai/DeepSeek-V3.2", "qwen3-next-80b-a3b")


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("name", OF_TODAY)
def test_models_of_today_replay_by_measured_kernels(name: str) -> None:
    """Through the command line, on eight GPUs with whole experts; no line speaks of a roofline."""
    done = warm.run(
        *("sundog", "replay", "traces/chat-poisson-2rps-5min.jsonl.gz", "--limit", "12", "--json"),
        *("--model", name, "--gpu", "h200", "-tp", "8", "--enable-expert-parallel"),
    )
    assert done.returncode == 0, done.stderr
    assert "roofline" not in done.stderr
    assert 0.002 < json.loads(done.stdout)["tpot_s"]["mean"] < 0.06
