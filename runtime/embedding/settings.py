"""Embedding settings of a folder: sentence-transformers' files (`modules.json`, `1_Pooling`), or vLLM's
defaults.

A folder with more than pooling, dense layers and scaling to length 1 is refused by name.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from sundog.actors.config.pooler import PoolerConfig, PoolingType
from sundog.actors.config.vector_sizes import VectorSizes
from sundog.actors.core.config import ConfigError
from sundog.runtime.checkpoint.facts import DECODERS, LoadError, read_json, read_list

PARTS = ("Transformer", "Pooling", "Dense", "Normalize")
"""Supported modules of sentence-transformers, by the last part of their type."""

SHIFTED = (
    "camembert",
    "data2vec-text",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
)
"""Model types whose positions begin after that of the padding token, so that fewer are usable."""


MODES = {
    "pooling_mode_cls_token": PoolingType.CLS,
    "pooling_mode_mean_tokens": PoolingType.MEAN,
    "pooling_mode_lasttoken": PoolingType.LAST,
}
MODE_NAMES = {"cls": PoolingType.CLS, "mean": PoolingType.MEAN, "lasttoken": PoolingType.LAST}


@dataclass(frozen=True, slots=True)
class EmbeddingSettings:
    """Treatment of the last layer's states. `pooling` None: the architecture's default.

    `projections` are the folders of dense layers, in order; `dimensions` applies to requests without their
    own.
    """

    pooling: PoolingType | None = None
    normalises: bool = True
    projections: tuple[Path, ...] = ()
    max_tokens: int | None = None
    lowercases: bool = False
    dimensions: int | None = None


def makes_vectors(folder: Path) -> bool:
    """Return whether the folder is an embedding model by its files or class, as in vLLM."""
    if any(kind == "Pooling" for kind, _ in _modules(folder)):
        return True
    names = read_json(folder / "config.json").get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else "unknown"
    return name.endswith("Model") and not name.endswith(DECODERS)


def read_settings(folder: Path, given: PoolerConfig | None = None) -> EmbeddingSettings:
    """Return the folder's settings, overridden by `--pooler-config`; LoadError names the fault."""
    settings = EmbeddingSettings()
    modules = _modules(folder)
    if modules:
        settings = replace(settings, normalises=False)
    for kind, part in modules:
        match kind:
            case "Transformer":
                settings = _read_transformer(part, settings)
            case "Pooling":
                settings = replace(settings, pooling=_read_pooling(part / "config.json"))
            case "Dense":
                settings = replace(settings, projections=(*settings.projections, part))
            case "Normalize":
                settings = replace(settings, normalises=True)
            case _:
                raise LoadError(
                    f"{folder / 'modules.json'} has a module {kind}: only {', '.join(PARTS)} are served"
                )
    if given is None:
        return settings
    return replace(
        settings,
        pooling=given.pooling or settings.pooling,
        normalises=settings.normalises if given.use_activation is None else given.use_activation,
        dimensions=given.dimensions,
    )


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """Return kind and folder of each module, in order; empty if there is no `modules.json`."""
    file = folder / "modules.json"
    try:
        rows = [row for row in read_list(file) if isinstance(row, dict)]
        return [(str(row["type"]).rpartition(".")[2], folder / str(row["path"])) for row in rows]
    except KeyError as error:
        raise LoadError(f"cannot read {file}: it is no list of modules with a type and a path") from error


def _read_transformer(part: Path, settings: EmbeddingSettings) -> EmbeddingSettings:
    found = read_json(part / "sentence_bert_config.json")
    length, lowers = found.get("max_seq_length"), found.get("do_lower_case", False)
    if (length is not None and (type(length) is not int or length < 1)) or not isinstance(lowers, bool):
        raise LoadError(f"cannot read {part / 'sentence_bert_config.json'}: max_seq_length is {length!r}")
    return replace(settings, max_tokens=length, lowercases=lowers)


def _read_pooling(file: Path) -> PoolingType:
    found = read_json(file)
    named = found.get("pooling_mode")
    modes = [str(named)] if named else [name for name in found if name.startswith("pooling_mode_")]
    asked = modes if named else [name for name in modes if found[name] is True]
    known = MODE_NAMES | MODES
    if len(asked) != 1 or asked[0] not in known:
        raise LoadError(
            f"{file}: pooling by {' and '.join(asked) or 'nothing'} is not served; cls, mean or last token is"
        )
    return known[asked[0]]


def vector_sizes(folder: Path, settings: EmbeddingSettings) -> VectorSizes:
    """Return the possible lengths of the folder's vectors; ConfigError if `dimensions` is not one of them."""
    config = read_json(folder / "config.json")
    last = settings.projections[-1] if settings.projections else None
    width = read_json(last / "config.json").get("out_features") if last else _width(config)
    lengths = config.get("matryoshka_dimensions") or []
    if type(width) is not int or not isinstance(lengths, list):
        raise LoadError(f"{folder} does not say how wide its vectors are")
    may_shorten = bool(lengths) or config.get("is_matryoshka") is True
    sizes = VectorSizes(width, may_shorten, tuple(int(each) for each in lengths if isinstance(each, int)))
    if settings.dimensions is not None and (reason := sizes.why_not(settings.dimensions)):
        raise ConfigError(f"--pooler-config: dimensions is {settings.dimensions}: {reason}")
    return sizes


def _width(config: dict[str, object]) -> object:
    return next(
        (config[name] for name in ("hidden_size", "dim", "d_model", "n_embd") if name in config), None
    )


def longest_prompt(folder: Path, settings: EmbeddingSettings, positions: int | None) -> int | None:
    """Return the longest prompt of a model with this many positions; None if unknown."""
    config = read_json(folder / "config.json")
    if positions is not None and config.get("model_type") in SHIFTED:
        pad = config.get("pad_token_id", 1)
        positions -= 1 + (pad if isinstance(pad, int) else 1)
    known = [length for length in (positions, settings.max_tokens) if length is not None]
    return min(known, default=None)
