"""A model as its Hugging Face config.json describes it: counts of parameters and bytes.

Covers decoder-only models of the Llama family: gated MLP, grouped-query attention, RMS norms,
optionally experts (Mixtral), per-head query and key norms (Qwen3) and tied embeddings.
"""

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from actors.core.config import ConfigError
from actors.core.names import normal, unknown

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1}
DTYPE_ALIASES = {
    "half": "float16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "float": "float32",
    "fp32": "float32",
    "fp8": "float8",
    "fp8_e4m3": "float8",
    "fp8_e5m2": "float8",
    "float8_e4m3fn": "float8",
}
MODEL_ALIASES = {
    "llama-2-7b-hf": "llama-2-7b",
    "llama-2-70b-hf": "llama-2-70b",
    "meta-llama-3.1-8b": "llama-3.1-8b",
    "llama-2-7b-chat": "llama-2-7b",
    "llama-2-7b-chat-hf": "llama-2-7b",
    "llama-2-70b-chat": "llama-2-70b",
    "llama-2-70b-chat-hf": "llama-2-70b",
    "llama-3.1-8b-instruct": "llama-3.1-8b",
    "meta-llama-3.1-8b-instruct": "llama-3.1-8b",
    "mixtral-8x7b-v0.1": "mixtral-8x7b",
    "mixtral-8x7b-instruct-v0.1": "mixtral-8x7b",
}


def dtype_name(name: str) -> str:
    """The canonical name of a dtype (`bf16` is bfloat16); raises ConfigError for an unknown one."""
    lower = name.lower().removeprefix("torch.")
    full = DTYPE_ALIASES.get(lower, lower)
    if full not in DTYPE_BYTES:
        raise unknown("dtype", name, [*DTYPE_BYTES, *DTYPE_ALIASES])
    return full


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes that decide cost; `num_experts` is 1 and `experts_per_token` 1 when dense."""

    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    tied_embeddings: bool
    num_experts: int
    experts_per_token: int
    query_key_norms: bool
    attention_bias: bool
    dtype: str

    @property
    def attention_params(self) -> int:
        """Weights of one layer's query, key, value and output projections."""
        width = (2 * self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        bias = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim + self.hidden_size
        return self.hidden_size * width + (bias if self.attention_bias else 0)

    @property
    def expert_params(self) -> int:
        """Weights of one expert's gate, up and down projections; the whole MLP when dense."""
        return 3 * self.hidden_size * self.intermediate_size

    @property
    def router_params(self) -> int:
        """Weights of one layer's expert gate; none when dense."""
        return self.hidden_size * self.num_experts if self.num_experts > 1 else 0

    @property
    def embedding_params(self) -> int:
        """Weights of one embedding table, and of the output head of the same shape."""
        return self.vocab_size * self.hidden_size

    @property
    def norm_params(self) -> int:
        """Weights of all norms."""
        per_layer = 2 * self.hidden_size + (2 * self.head_dim if self.query_key_norms else 0)
        return self.num_layers * per_layer + self.hidden_size

    def _params(self, num_experts: int) -> int:
        layer = self.attention_params + self.router_params + num_experts * self.expert_params
        tables = 1 if self.tied_embeddings else 2
        return self.num_layers * layer + self.norm_params + tables * self.embedding_params

    @property
    def num_params(self) -> int:
        """All parameters."""
        return self._params(self.num_experts)

    @property
    def num_active_params(self) -> int:
        """Parameters one token meets: every layer, but only the experts it is sent to."""
        return self._params(self.experts_per_token)

    def weight_bytes(self, dtype: str | None = None) -> int:
        """Bytes of all weights."""
        return self.num_params * DTYPE_BYTES[dtype or self.dtype]

    def kv_bytes_per_token(self, kv_dtype: str | None = None) -> int:
        """Bytes of keys and values of one token in all layers."""
        per_layer = 2 * self.num_kv_heads * self.head_dim
        return self.num_layers * per_layer * DTYPE_BYTES[kv_dtype or self.dtype]


def known_models() -> list[str]:
    """Names of the models described in this package, sorted."""
    entries = (files("sim.hardware") / "models").iterdir()
    return sorted(entry.name[:-5] for entry in entries if entry.name.endswith(".json"))


def load_model(name: str) -> ModelShape:
    """The model of that name or Hugging Face id, or from a folder or file with a config.json.

    A path is what exists or looks like one (starts with `.`, `/` or `~`, ends in `.json`).
    Raises ConfigError which suggests the nearest name and lists all.
    """
    path = Path(name).expanduser()
    if path.exists() or name.startswith((".", "/", "~")) or name.endswith(".json"):
        path = path / "config.json" if path.is_dir() else path
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the model's config {path}: {error}") from None
        return shape_of(text, str(path))
    known = known_models()
    tail = normal(name.rsplit("/", 1)[-1])
    key = MODEL_ALIASES.get(tail, tail)
    if key not in known:
        raise unknown("model", name, known, also=", or a folder with a config.json")
    return shape_of((files("sim.hardware") / "models" / f"{key}.json").read_text("utf-8"), key)


def shape_of(text: str, source: str) -> ModelShape:
    """The shape in the text of a config.json; `source` names it in errors."""
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{source}: not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{source}: a config.json holds one object, not {type(config).__name__}")
    heads = _count(config, source, "num_attention_heads")
    hidden = _count(config, source, "hidden_size")
    num_experts = 1
    for key in ("num_local_experts", "num_experts"):
        num_experts = _count(config, source, key, num_experts)
    intermediate = _count(config, source, "intermediate_size")
    if "moe_intermediate_size" in config:
        intermediate = _count(config, source, "moe_intermediate_size")
    kind = config.get("model_type", "")
    return ModelShape(
        name=source if source in known_models() else config.get("_name_or_path") or source,
        num_layers=_count(config, source, "num_hidden_layers"),
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_heads=heads,
        num_kv_heads=_count(config, source, "num_key_value_heads", heads),
        head_dim=_count(config, source, "head_dim", max(hidden // heads, 1)),
        vocab_size=_count(config, source, "vocab_size"),
        max_positions=_count(config, source, "max_position_embeddings"),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        num_experts=num_experts,
        experts_per_token=_count(config, source, "num_experts_per_tok", 1),
        query_key_norms=isinstance(kind, str) and kind.startswith("qwen3"),
        attention_bias=bool(config.get("attention_bias", False)),
        dtype=dtype_name(str(config.get("torch_dtype") or config.get("dtype") or "bfloat16")),
    )


def _count(config: dict[str, Any], source: str, key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        value = default
    if value is None:
        raise ConfigError(f"{source}: {key} is missing")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{source}: {key} is {value!r}: it must be a whole number of at least 1")
    return value
