"""What can be refused before torch is imported: nobody waits seconds to hear of a mistake in the options."""

from collections.abc import Sequence
from pathlib import Path

from actors.core.config import ConfigError, SchedulerConfig
from actors.core.params.adapter import Adapter
from runtime.checkpoint.facts import check_blocks, check_context
from runtime.lora.peft import read_adapter


def check_settings(
    folder: Path,
    limits: SchedulerConfig,
    *,
    dtype: str,
    quantization: str | None,
    adapters: Sequence[Adapter],
    max_lora_rank: int,
) -> None:
    """Raise ConfigError for what a model's files and the settings tell is impossible."""
    check_context(folder, limits.max_model_len)
    if limits.num_gpu_blocks is not None:
        check_blocks(limits.num_gpu_blocks, limits.block_size, limits.max_model_len)
    if quantization is not None and dtype not in ("auto", "bfloat16"):
        raise ConfigError(
            f"--quantization {quantization} needs weights in bfloat16, and --dtype is {dtype}: leave one out"
        )
    for adapter in adapters:
        read_adapter(Path(adapter.path), max_lora_rank)
