"""The real world's composition: a model folder, torch backends, and the facts about the model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from actors.config import ConfigError, EngineConfig
from actors.core.adapter import Adapter
from actors.front.codec import Vocabulary
from runtime.draft_folder import check_speculation
from runtime.facts import read_facts
from runtime.structured.grammars import Grammars
from runtime.tokenizer import Tokenizer

if TYPE_CHECKING:
    from runtime.backend import TorchBackend

EMBEDDED_MODEL = Path(__file__).parent / "assets" / "sundog-tiny"


@dataclass(frozen=True, slots=True)
class RealModel:
    """A model folder that can be served; `name` is what clients call it."""

    folder: Path
    name: str
    tokenizer: Tokenizer
    vocabulary: Vocabulary
    grammars: Grammars
    max_position_embeddings: int | None

    @classmethod
    def open(cls, model: str | None, served_name: str | None = None) -> "RealModel":
        """The folder `model`, or the embedded model; LoadError says what is wrong with it."""
        folder = Path(model) if model else EMBEDDED_MODEL
        config = read_facts(folder)
        tokenizer = Tokenizer(folder)
        ends = tokenizer.eos_token_ids
        grammars = Grammars(tokenizer.to_json, ends)
        vocabulary = Vocabulary(
            eos_token_id=ends[0] if ends else None,
            stop_token_ids=ends[1:],
            size=config.vocab_size,
            grammars=grammars,
        )
        name = served_name or folder.resolve().name
        return cls(folder, name, tokenizer, vocabulary, grammars, config.max_position_embeddings)


def torch_backends(
    model: RealModel,
    config: EngineConfig,
    *,
    device: str = "cpu",
    dtype: str = "auto",
    gpu_memory_utilization: float | None = None,
    seed: int = 0,
    num_threads: int | None = None,
    adapters: Sequence[Adapter] = (),
    max_lora_rank: int = 16,
) -> Callable[[int], "TorchBackend"]:
    """What makes the backend of a replica. Imports torch; raises ConfigError where there is none."""
    try:
        from runtime.backend import TorchBackend
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"a real model needs {error.name}: install it with `pip install 'sundog[engine]'`"
        ) from error

    limits = config.scheduler
    if config.speculation is not None:
        check_speculation(config.speculation, model.folder, model.vocabulary.size, limits.max_model_len)

    def new_backend(replica: int) -> TorchBackend:
        return TorchBackend(
            model.folder,
            device=device,
            dtype=dtype,
            block_size=limits.block_size,
            num_gpu_blocks=limits.num_gpu_blocks,
            max_model_len=limits.max_model_len,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_num_seqs=limits.max_num_seqs,
            gpu_memory_utilization=gpu_memory_utilization,
            seed=seed + replica,
            eos_token_ids=model.tokenizer.eos_token_ids,
            num_threads=num_threads,
            num_sharing=config.replicas,
            speculation=config.speculation,
            grammars=model.grammars,
            adapters={adapter.name: Path(adapter.path) for adapter in adapters},
            max_lora_rank=max_lora_rank,
        )

    return new_backend
