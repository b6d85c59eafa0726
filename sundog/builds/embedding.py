"""What `sundog serve` makes of a model that makes vectors."""

from dataclasses import replace
from typing import TYPE_CHECKING

from actors.config import ConfigError, EngineConfig
from sundog.options.engine import DEFAULT_LIMITS, UNKNOWN_CONTEXT, Engine
from sundog.options.serving import RealServing

if TYPE_CHECKING:
    from runtime.serve import RealModel


def embedding_config(real: "RealModel", serving: RealServing, engine: Engine) -> EngineConfig:
    """The deployment: prompts are whole, and nothing of them is kept."""
    for option, given in (
        ("--enable-lora", serving.enable_lora),
        ("--speculative-config", engine.speculative_config is not None),
        ("--quantization", engine.quantization is not None),
    ):
        if given:
            raise ConfigError(f"{option} is for models that generate text: leave it out")
    context = real.max_position_embeddings
    longest = engine.max_model_len or context or UNKNOWN_CONTEXT
    num_tokens, num_seqs = DEFAULT_LIMITS
    config = engine.config(context, (max(num_tokens, longest), num_seqs))
    whole = replace(
        config.scheduler,
        enable_chunked_prefill=False,
        enable_prefix_caching=False,
        async_scheduling=False,
        num_gpu_blocks=None,
    )
    return replace(config, scheduler=whole)
