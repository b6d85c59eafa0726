"""Real engines put together: a model folder, torch backends, and facts about the model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sundog.actors.config import ConfigError, EngineConfig
from sundog.actors.config.pooler import PoolerConfig
from sundog.actors.config.sampling_defaults import NEUTRAL, SamplingDefaults
from sundog.actors.config.vector_sizes import VectorSizes
from sundog.actors.core.params.fields import MAX_TOKENS, MIN_P, REPETITION_PENALTY, TOP_K, TOP_P
from sundog.actors.core.params.sampling import Adapter
from sundog.actors.front.codec import Vocabulary
from sundog.runtime.checkpoint.facts import LoadError, read_facts, read_json
from sundog.runtime.checks import check_settings, check_speculation
from sundog.runtime.embedding.settings import (
    EmbeddingSettings,
    longest_prompt,
    makes_vectors,
    read_settings,
    vector_sizes,
)
from sundog.runtime.host.imports import quick_imports
from sundog.runtime.ranks.rank import RankPlace
from sundog.runtime.structured.grammars import Grammars
from sundog.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from sundog.runtime.embedding.backend import EmbeddingBackend
    from sundog.runtime.engine.backend import TorchBackend

EMBEDDED_MODEL = Path(__file__).parent / "assets" / "sundog-tiny"


def is_embedded(model: str) -> bool:
    """Return whether this is the embedded model's name, and no such folder exists here."""
    return model == EMBEDDED_MODEL.name and not Path(model).exists()


@dataclass(frozen=True, slots=True)
class RealModel:
    """Model folder that can be served; `name` is the model's name for clients."""

    folder: Path
    name: str
    tokenizer: Tokenizer
    vocabulary: Vocabulary
    grammars: Grammars
    max_position_embeddings: int | None
    embedding: EmbeddingSettings | None = None
    """Embedding settings; None for a model that generates text."""
    vectors: VectorSizes | None = None

    @classmethod
    def open(
        cls,
        model: str | None,
        served_name: str | None = None,
        runner: str = "auto",
        pooler_config: PoolerConfig | None = None,
        chat_template: Path | None = None,
    ) -> "RealModel":
        """Open the folder `model`, or the embedded model by its name or None; LoadError has the reason of a
        failure.

        `runner` pooling serves it for vectors, generate for text, auto decides by its files.
        """
        folder = EMBEDDED_MODEL if model is None or is_embedded(model) else Path(model)
        embeds = makes_vectors(folder) if runner == "auto" else runner == "pooling"
        config = read_facts(folder, embeds=embeds)
        settings = read_settings(folder, pooler_config) if embeds else None
        if pooler_config is not None and settings is None:
            raise ConfigError("--pooler-config is for models that make vectors: add --runner pooling")
        lowercases = settings is not None and settings.lowercases
        tokenizer = Tokenizer(folder, lowercases=lowercases, chat_template=chat_template)
        ends = tokenizer.eos_token_ids
        grammars = Grammars(tokenizer.to_json, ends)
        vocabulary = Vocabulary(
            eos_token_id=ends[0] if ends else None,
            stop_token_ids=ends[1:],
            size=config.vocab_size,
            grammars=grammars,
        )
        name = served_name or folder.resolve().name
        context = config.max_position_embeddings
        if settings is not None:
            context = longest_prompt(folder, settings, context)
        sizes = None if settings is None else vector_sizes(folder, settings)
        return cls(
            folder,
            name,
            tokenizer=tokenizer,
            vocabulary=vocabulary,
            grammars=grammars,
            max_position_embeddings=context,
            embedding=settings,
            vectors=sizes,
        )

    def sampling_defaults(self) -> SamplingDefaults:
        """Return the defaults of `generation_config.json`; LoadError names an invalid value."""
        file = self.folder / "generation_config.json"
        values = {name: value for name, value in read_json(file).items() if value is not None}
        try:
            asked = _GenerationFile.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            raise LoadError(f"cannot read {file}: {first['loc'][0]} is {first['input']!r}") from None
        return SamplingDefaults(**asked.model_dump())


class _GenerationFile(BaseModel):
    model_config = ConfigDict(extra="ignore")
    temperature: float = Field(NEUTRAL.temperature, ge=0, le=1e6, allow_inf_nan=False)
    top_k: Annotated[int, Field(**TOP_K.bounds)] = NEUTRAL.top_k
    top_p: Annotated[float, Field(**TOP_P.bounds)] = NEUTRAL.top_p
    min_p: Annotated[float, Field(**MIN_P.bounds)] = NEUTRAL.min_p
    repetition_penalty: Annotated[float, Field(**REPETITION_PENALTY.bounds)] = NEUTRAL.repetition_penalty
    max_tokens: Annotated[int, Field(**MAX_TOKENS.bounds)] | None = Field(
        None, validation_alias="max_new_tokens"
    )


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
    loads_adapters: bool = False,
    max_lora_rank: int = 16,
    quantization: str | None = None,
    rank: RankPlace | None = None,
) -> Callable[[int], "TorchBackend"]:
    """Return the function that makes a replica's backend, or that of one `rank` of it. Imports torch; raises
    ConfigError.
    """
    limits = config.scheduler
    check_settings(
        model.folder,
        limits,
        dtype=dtype,
        quantization=quantization,
        adapters=adapters,
        max_lora_rank=max_lora_rank,
    )
    if config.speculation is not None:
        check_speculation(config.speculation, model.folder, model.vocabulary.size, limits.max_model_len)
    try:
        with quick_imports():
            from sundog.runtime.engine.backend import TorchBackend
    except ModuleNotFoundError as error:
        raise missing_engine(error) from error

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
            num_sharing=config.replicas * (1 if rank is None else rank.count),
            speculation=config.speculation,
            grammars=model.grammars,
            adapters={adapter.name: Path(adapter.path) for adapter in adapters},
            loads_adapters=loads_adapters,
            max_lora_rank=max_lora_rank,
            quantization=quantization,
            rank=rank,
            remarks=replica == 0 and (rank is None or rank.leads),
        )

    return new_backend


def embedding_backends(
    model: RealModel,
    config: EngineConfig,
    *,
    device: str = "cpu",
    dtype: str = "auto",
    num_threads: int | None = None,
) -> Callable[[int], "EmbeddingBackend"]:
    """Return the function that makes an embedding model's backend. Imports torch."""
    settings, limits = model.embedding, config.scheduler
    assert settings is not None, "the model generates text"
    try:
        with quick_imports():
            from sundog.runtime.embedding.backend import EmbeddingBackend
    except ModuleNotFoundError as error:
        raise missing_engine(error) from error

    def new_backend(replica: int) -> EmbeddingBackend:
        return EmbeddingBackend(
            model.folder,
            settings,
            device=device,
            dtype=dtype,
            block_size=limits.block_size,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_num_seqs=limits.max_num_seqs,
            num_threads=num_threads,
        )

    return new_backend


def missing_engine(error: ModuleNotFoundError) -> ConfigError:
    """Return the error for a missing extra, without which no model can be served."""
    return ConfigError(f"a real model needs {error.name}: install it with `pip install 'sundog[engine]'`")
