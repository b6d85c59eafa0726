"""Checks of options before torch is imported, so that a mistake is reported within a second.

A draft model must have the same vocabulary and the same context.
"""

from collections.abc import Sequence
from pathlib import Path

from sundog.actors.config.speculative import SpeculativeConfig
from sundog.actors.core.config import ConfigError, SchedulerConfig
from sundog.actors.core.params.sampling import Adapter
from sundog.runtime.checkpoint.facts import LoadError, check_blocks, check_context, read_facts, read_json
from sundog.runtime.lora.peft import read_adapter


def check_speculation(
    asked: SpeculativeConfig, target: Path, vocab_size: int | None, max_model_len: int
) -> None:
    """Raise ConfigError for drafts that cannot be made or verified, before any weight is read."""
    for key in ("acceptance", "proposed"):
        if getattr(asked, key) is not None:
            raise ConfigError(
                f"--speculative-config: {key} applies to simulated GPUs only, since a real model determines"
                " itself which drafts it accepts; leave it out"
            )
    if asked.model is None:
        return
    folder = Path(asked.model)
    try:
        facts = read_facts(folder)
    except LoadError as error:
        raise LoadError(f"--speculative-config: {error}") from error
    if facts.vocab_size != vocab_size:
        raise LoadError(
            f"--speculative-config: the draft model {folder} has a vocabulary of {facts.vocab_size} tokens,"
            f" {target} one of {vocab_size}: a draft model needs the same tokens; choose another draft model"
        )
    if _vocabulary(folder) != _vocabulary(target):
        raise LoadError(
            f"--speculative-config: the draft model {folder} and {target} have different tokenizers: the same"
            " number would be another text; choose a draft model of the same family"
        )
    context = facts.max_position_embeddings
    if context is not None and context < max_model_len:
        raise LoadError(
            f"--speculative-config: the context of the draft model {folder} is {context}, less than"
            f" max_model_len ({max_model_len}): lower --max-model-len to it"
        )


def _vocabulary(folder: Path) -> object:
    """Return the vocabulary and special tokens in the tokenizer's file; None if there is no file."""
    model = read_json(folder / "tokenizer.json").get("model")
    return model.get("vocab") if isinstance(model, dict) else None


def check_settings(
    folder: Path,
    limits: SchedulerConfig,
    *,
    dtype: str,
    quantization: str | None,
    adapters: Sequence[Adapter],
    max_lora_rank: int,
) -> None:
    """Raise ConfigError for settings that contradict a model's files."""
    check_context(folder, limits.max_model_len)
    if limits.num_gpu_blocks is not None:
        check_blocks(limits.num_gpu_blocks, limits.block_size, limits.max_model_len)
    if quantization is not None and dtype not in ("auto", "bfloat16"):
        raise ConfigError(
            f"--quantization {quantization} needs weights in bfloat16, and --dtype is {dtype}: leave one out"
        )
    for adapter in adapters:
        read_adapter(Path(adapter.path), max_lora_rank)
