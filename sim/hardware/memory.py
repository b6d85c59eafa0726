"""Split of a model over GPUs, and the KV blocks that fit next to its weights, by vLLM's rule."""

import math
from collections import Counter
from dataclasses import replace

from sundog.actors.core.config import ConfigError
from sundog.actors.core.records import dataclass
from sundog.sim.hardware.attention import GatedDelta
from sundog.sim.hardware.formats import DTYPE_BYTES
from sundog.sim.hardware.gpu import Gpu
from sundog.sim.hardware.shape import ModelShape

RUNTIME_BYTES = 600_000_000
"""Bytes of CUDA context, NCCL buffers and captured graphs; with the activations below they bring Qwen3-14B
on an H100 within 1 % of the measured 18,038 blocks, Llama-3.1-8B on an RTX 4090 within 7 % of the
measured 2,588. Give `--num-gpu-blocks` if the real count is known.
"""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of one GPU (one tensor-parallel rank) and the KV blocks that fit into the rest."""

    usable_bytes: int
    weight_bytes: int
    activation_bytes: int
    block_bytes: int
    num_blocks: int


def check_parallel(model: ModelShape, tensor_parallel_size: int) -> None:
    """Raise ConfigError for a number of ranks that the heads cannot be split over, or replicated to."""
    ranks, kv_heads = tensor_parallel_size, model.num_kv_heads
    for heads in model.shared_heads:
        if ranks < 1 or heads % ranks:
            raise ConfigError(
                f"tensor_parallel_size is {ranks}: it must divide the {heads} attention heads of {model.name}"
            )
    if kv_heads is not None and kv_heads % ranks and ranks % kv_heads:
        raise ConfigError(
            f"tensor_parallel_size is {ranks}: it must divide the {kv_heads} key heads of {model.name},"
            " or be a multiple of them"
        )


KERNEL_TOKENS = 16
"""Tokens of the smallest block that attention kernels support: vLLM's blocks are multiples."""


def block_of_states(
    model: ModelShape,
    *,
    block_size: int,
    tensor_parallel_size: int = 1,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    num_drafts: int = 0,
) -> int:
    """Return the tokens of a block of the model, at least `block_size`.

    States of linear attention are kept in blocks of the same pool. So vLLM enlarges blocks until a layer's
    keys and values of one take as many bytes as its largest state (`_align_hybrid_block_size`), in steps of
    the larger of `block_size` and the kernels' minimum. Models without states, or without keys, keep
    `block_size`.
    """
    dtype = dtype or model.dtype
    size, ranks = DTYPE_BYTES[kv_dtype or dtype], tensor_parallel_size
    kinds = [layer.attention for layer, _ in model.layers]
    states = [
        k.request_bytes(ranks, DTYPE_BYTES[dtype], num_drafts) for k in kinds if isinstance(k, GatedDelta)
    ]
    token_bytes = max(kind.kv_values(ranks) for kind in kinds) * size
    if not states or not token_bytes:
        return block_size
    unit = max(KERNEL_TOKENS, block_size)
    return max(unit * math.ceil(max(states) / (unit * token_bytes)), block_size)


def plan_memory(
    model: ModelShape,
    gpu: Gpu,
    *,
    block_size: int = 16,
    max_num_batched_tokens: int = 2048,
    max_num_seqs: int = 256,
    gpu_memory_utilization: float = 0.92,
    tensor_parallel_size: int = 1,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    draft: ModelShape | None = None,
    data_parallel_size: int = 1,
    states_per_request: int = 1,
) -> MemoryPlan:
    """Split one GPU's memory; `num_blocks` includes the null block.

    vLLM's rule (`determine_available_memory`): utilization x memory - weights - the peak of a profiled step,
    divided by a block's bytes. The peak is estimated: the widest activations of one layer, or two float32
    copies of the logits, which are made after the layers, and `RUNTIME_BYTES`. Heads of keys and values are
    replicated when there are fewer of them than ranks, latents on every rank.

    A block holds `block_size` tokens of every layer. For layers with a window vLLM's hybrid manager frees
    tokens that have left it, and the larger of two counts that it can always reach is used: all layers keep
    everything, or a window is reserved for every request that may run, plus a step's tokens, and blocks hold
    the other layers alone.

    A `draft` model takes its part. Experts are shared by all data-parallel ranks. For linear attention
    `states_per_request` states of each running request are reserved (`_states`).

    Raises ConfigError with the needed memory if not even one block fits.
    """
    check_parallel(model, tensor_parallel_size)
    if not 0 < gpu_memory_utilization <= 1:
        raise ConfigError(f"gpu_memory_utilization is {gpu_memory_utilization}: it must be in (0, 1]")
    dtype = dtype or model.dtype
    ranks = tensor_parallel_size
    activation_bytes = _activations(model, ranks, dtype, max_num_seqs, max_num_batched_tokens)
    weight_bytes = model.weight_bytes(dtype, ranks, data_parallel_size)
    block_bytes = block_size * model.kv_bytes_per_token(kv_dtype or dtype, ranks)
    if draft is not None:
        check_parallel(draft, ranks)
        weight_bytes += draft.weight_bytes(dtype, ranks)
        block_bytes += block_size * draft.kv_bytes_per_token(kv_dtype or dtype, ranks)
    usable_bytes = int(gpu_memory_utilization * gpu.memory_bytes)
    left_bytes = usable_bytes - weight_bytes - activation_bytes
    state_bytes = states_per_request * _state_bytes(model, ranks, dtype, block_bytes)
    left_bytes -= _states(state_bytes, max_num_seqs, left_bytes, block_bytes // block_size)
    num_blocks = left_bytes // max(block_bytes, 1)
    if model.has_windows:
        kept, apart_bytes = _apart(model, ranks, max_num_seqs, max_num_batched_tokens, block_size)
        size = DTYPE_BYTES[kv_dtype or dtype]
        if kept:
            beside = (left_bytes - size * apart_bytes) // (size * kept * block_size)
            num_blocks = max(num_blocks, beside)
    plan = MemoryPlan(
        usable_bytes,
        weight_bytes,
        activation_bytes=activation_bytes,
        block_bytes=block_bytes,
        num_blocks=num_blocks,
    )
    if num_blocks < 2:
        raise ConfigError(_too_small(model, gpu, plan, dtype, ranks, gpu_memory_utilization))
    return plan


def _activations(model: ModelShape, ranks: int, dtype: str, seqs: int, budget: int) -> int:
    """Return the bytes of a layer's widest activations or of two copies of the logits, and the runtime."""
    width = 2 * max(layer.mlp.inner for layer, _ in model.layers) // ranks + 2 * model.hidden_size
    logits_bytes = 2 * seqs * model.vocab_size * DTYPE_BYTES["float32"] * model.has_head
    return max(budget * width * DTYPE_BYTES[dtype], logits_bytes) + RUNTIME_BYTES


STATE_CONTEXT = 2048


def _state_bytes(model: ModelShape, ranks: int, dtype: str, block_bytes: int) -> int:
    """Return the bytes that a rank reserves for a state of all layers: whole blocks, if states fit into
    those.

    A block has as many layers as have keys and values; linear layers are grouped by that number, each group
    taking a block.
    """
    kinds = [(layer.attention, count) for layer, count in model.layers]
    num_linear = sum(count for kind, count in kinds if isinstance(kind, GatedDelta))
    num_full = model.num_layers - num_linear
    plain = model.request_bytes(ranks, dtype)
    return max(plain, math.ceil(num_linear / num_full) * block_bytes) if plain and num_full else plain


def _states(state_bytes: int, seqs: int, left_bytes: int, token_bytes: int) -> int:
    """Return the bytes reserved for states of linear attention, which vLLM allocates from the blocks.

    Assumes as many running requests as have room with `STATE_CONTEXT` tokens each.
    """
    if not state_bytes:
        return 0
    return min(seqs, left_bytes // (state_bytes + STATE_CONTEXT * token_bytes)) * state_bytes


def _apart(model: ModelShape, ranks: int, seqs: int, budget: int, block_size: int) -> tuple[int, int]:
    kept = apart = 0
    for layer, count in model.layers:
        values, window = count * layer.attention.kv_values(ranks), layer.attention.window
        if window is None:
            kept += values
        else:
            apart += values * (seqs * (window + block_size) + budget)
    return kept, apart


def _too_small(
    model: ModelShape, gpu: Gpu, plan: MemoryPlan, dtype: str, ranks: int, utilization: float
) -> str:
    needed = plan.weight_bytes + plan.activation_bytes + 2 * plan.block_bytes
    enough = ranks
    while enough < 1024 and not _fits(model, plan, dtype, enough):
        enough *= 2
    way_out = "choose a larger --gpu"
    if enough < 1024 and _splits(model, enough):
        way_out = f"raise --tensor-parallel-size to {enough}, or {way_out}"
    elif enough < 1024:
        way_out = f"it takes {enough} such GPUs, which its heads cannot be split over: {way_out}"
    return (
        f"{model.name} does not fit on {gpu.name}: each of {ranks} GPU(s) needs"
        f" {needed / 1e9:.1f} GB ({plan.weight_bytes / 1e9:.1f} weights,"
        f" {plan.activation_bytes / 1e9:.1f} activations, the rest KV blocks) and may use"
        f" {plan.usable_bytes / 1e9:.1f} GB ({utilization:g} of {gpu.memory_bytes / 1e9:.1f});"
        f" {way_out}"
    )


def _fits(model: ModelShape, plan: MemoryPlan, dtype: str, ranks: int) -> bool:
    weight_bytes = model.weight_bytes(dtype, ranks)
    return weight_bytes + plan.activation_bytes + 2 * plan.block_bytes < plan.usable_bytes


def _splits(model: ModelShape, ranks: int) -> bool:
    try:
        check_parallel(model, ranks)
    except ConfigError:
        return False
    return True


def layers_of_stages(num_layers: int, num_stages: int) -> list[int]:
    """Return each stage's number of layers: the remainder goes to stages before the last, from the back.

    The last has the output head, and the first, if others can take the remainder, the embedding (vLLM's
    `get_pp_indices`).
    """
    each, left = divmod(num_layers, num_stages)
    return [each + (num_stages - 1 - left <= stage < num_stages - 1) for stage in range(num_stages)]


def stages_of(model: ModelShape, num_stages: int) -> tuple[ModelShape, ...]:
    """Return the part of the model on each stage; the model itself for one stage.

    The first has the embedding, the last the final norm and the output head. A head that is the same table as
    the embedding is kept on both. Raises ConfigError for fewer layers than stages.
    """
    if num_stages == 1:
        return (model,)
    if num_stages > model.num_layers:
        raise ConfigError(
            f"pipeline_parallel_size is {num_stages}, and {model.name} has {model.num_layers} layers: give at"
            " most as many stages"
        )
    stages, first, layers = [], 0, model.layers_in_order
    for stage, count in enumerate(layers_of_stages(len(layers), num_stages)):
        own = Counter(layers[first : first + count])
        stages.append(
            replace(
                model,
                name=f"{model.name}, stage {stage + 1} of {num_stages}",
                layers=tuple(own.items()),
                order=(),
                has_embedding=stage == 0,
                has_head=stage == num_stages - 1,
            )
        )
        first += count
    return tuple(stages)


def sharing_ranks(model: ModelShape, num_ranks: int, whole_experts: bool, num_stages: int) -> int:
    """Return the number of data-parallel ranks that share experts and step together; 1 if ranks are
    independent.

    Raises ConfigError for experts in parts, and for stages.
    """
    if num_ranks == 1 or not model.has_experts:
        return 1
    if not whole_experts:
        raise ConfigError(
            f"--data-parallel-size is {num_ranks}: experts of {model.name} split over all ranks are"
            " not modelled; add --enable-expert-parallel"
        )
    if num_stages > 1:
        raise ConfigError(
            f"--data-parallel-size is {num_ranks}: ranks that share experts are not modelled with "
            "pipeline stages;"
            " leave --pipeline-parallel-size at 1"
        )
    return num_ranks
