"""How many KV blocks fit beside the weights, by vLLM's rule."""

import math
from dataclasses import dataclass

from actors.core.config import ConfigError
from sim.hardware.gpu import Gpu
from sim.hardware.model import DTYPE_BYTES, ModelShape

RUNTIME_BYTES = 600_000_000
"""CUDA context, NCCL buffers and captured graphs; with the activations below it brings Qwen3-14B
on an H100 within 1 % of the measured 18,038 blocks, Llama-3.1-8B on an RTX 4090 within 5 % of the
measured 2,588. Give `--num-gpu-blocks` where the real count is known."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of one GPU (one tensor-parallel rank) and the KV blocks that fit into the rest."""

    usable_bytes: int
    weight_bytes: int
    activation_bytes: int
    block_bytes: int
    num_blocks: int


def check_parallel(model: ModelShape, tensor_parallel_size: int) -> None:
    """Refuse a number of ranks that the attention heads cannot be split over."""
    if tensor_parallel_size < 1 or model.num_heads % tensor_parallel_size:
        raise ConfigError(
            f"tensor_parallel_size is {tensor_parallel_size}: it must divide the"
            f" {model.num_heads} attention heads of {model.name}"
        )


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
) -> MemoryPlan:
    """Split one GPU's memory; `num_blocks` includes the null block.

    vLLM's rule (`determine_available_memory`): utilization x memory - weights - the peak of a
    profiled step, divided by a block's bytes. The peak is estimated: the widest activations of
    one layer, two float32 copies of the logits, and `RUNTIME_BYTES`. Heads of keys and values
    are replicated when there are fewer of them than ranks.

    Raises ConfigError which says how much is needed when not even one block fits.
    """
    check_parallel(model, tensor_parallel_size)
    if not 0 < gpu_memory_utilization <= 1:
        raise ConfigError(f"gpu_memory_utilization is {gpu_memory_utilization}: it must be in (0, 1]")
    dtype = dtype or model.dtype
    ranks = tensor_parallel_size
    width = 2 * model.intermediate_size // ranks + 2 * model.hidden_size
    activation_bytes = (
        max_num_batched_tokens * width * DTYPE_BYTES[dtype]
        + 2 * max_num_seqs * model.vocab_size * DTYPE_BYTES["float32"]
        + RUNTIME_BYTES
    )
    weight_bytes = math.ceil(model.weight_bytes(dtype) / ranks)
    kv_share = math.ceil(model.num_kv_heads / ranks) / model.num_kv_heads
    block_bytes = round(block_size * model.kv_bytes_per_token(kv_dtype or dtype) * kv_share)
    usable_bytes = int(gpu_memory_utilization * gpu.memory_bytes)
    num_blocks = (usable_bytes - weight_bytes - activation_bytes) // block_bytes
    plan = MemoryPlan(usable_bytes, weight_bytes, activation_bytes, block_bytes, num_blocks)
    if num_blocks < 2:
        raise ConfigError(_too_small(model, gpu, plan, ranks, gpu_memory_utilization))
    return plan


def _too_small(model: ModelShape, gpu: Gpu, plan: MemoryPlan, ranks: int, utilization: float) -> str:
    needed = plan.weight_bytes + plan.activation_bytes + 2 * plan.block_bytes
    enough = ranks
    while enough < 1024 and not _fits(model, plan, ranks, enough):
        enough *= 2
    way_out = "choose a larger --gpu"
    if enough < 1024 and model.num_heads % enough == 0:
        way_out = f"raise --tensor-parallel-size to {enough}, or {way_out}"
    return (
        f"{model.name} does not fit on {gpu.name}: each of {ranks} GPU(s) needs"
        f" {needed / 1e9:.1f} GB ({plan.weight_bytes / 1e9:.1f} weights,"
        f" {plan.activation_bytes / 1e9:.1f} activations, the rest KV blocks) and may use"
        f" {plan.usable_bytes / 1e9:.1f} GB ({utilization:g} of {gpu.memory_bytes / 1e9:.1f});"
        f" {way_out}"
    )


def _fits(model: ModelShape, plan: MemoryPlan, ranks: int, more_ranks: int) -> bool:
    weight_bytes = plan.weight_bytes * ranks / more_ranks
    return weight_bytes + plan.activation_bytes + 2 * plan.block_bytes < plan.usable_bytes
