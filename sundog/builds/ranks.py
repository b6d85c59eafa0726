"""What ranks that share a model cannot do, refused by name before a process begins."""

from actors.config import ConfigError
from sundog.options.engine import Engine
from sundog.options.serving import RealServing


def refuse_what_ranks_cannot(engine: Engine, serving: RealServing, *, embeds: bool) -> None:
    """Refuse what one process can, and several that share a model cannot."""
    if engine.tensor_parallel_size == 1:
        return
    asked = f"--tensor-parallel-size is {engine.tensor_parallel_size}"
    if embeds:
        raise ConfigError(f"{asked}: models that make vectors run on one device; leave it at 1")
    for option, given in (
        ("--in-process", serving.in_process),
        ("--enable-lora", serving.enable_lora or bool(serving.lora_modules)),
        ("--speculative-config", engine.speculative_config is not None),
        ("--quantization", engine.quantization is not None),
    ):
        if given:
            raise ConfigError(f"{asked}, and ranks that share a model cannot do {option}: leave one out")
