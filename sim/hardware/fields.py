"""Fields of a config.json, checked as they are read: an error names the file and the field.

`mlp_of` and similar functions read the MLPs and attention windows of a model's layers.
"""

import json
from dataclasses import replace
from typing import Any

from sundog.actors.core.config import ConfigError
from sundog.actors.core.records import dataclass
from sundog.sim.hardware.shape import Experts, Mlp

MOST = 2**31
MOST_LAYERS = 2000


def config_of(text: str, source: str) -> dict[str, Any]:
    """Parse the object in the text of a config.json."""
    try:
        config = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"{source}: not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{source}: a config.json holds one object, not {type(config).__name__}")
    return config


@dataclass(frozen=True, slots=True)
class Fields:
    """Config with the defaults of its family; null counts as missing."""

    values: dict[str, Any]
    source: str

    def get(self, key: str) -> object:
        """Return the unchecked value; None if missing."""
        value: object = self.values.get(key)
        return value

    def count(self, key: str, default: int | None = None, least: int = 1, most: int = MOST) -> int:
        """Return a field that is a whole number."""
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise ConfigError(f"{self.source}: {key} is missing")
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ConfigError(
                f"{self.source}: {key} is {_short(value)}: it must be a whole number"
                f" of at least {least}" + (f" and at most {most:,}" if _above(value, most) else "")
            )
        return value

    def maybe(self, key: str) -> int | None:
        """Return a whole number of at least 1, or None."""
        return None if self.values.get(key) is None else self.count(key)

    def flag(self, key: str, default: bool = False) -> bool:
        """Return a field that is true or false."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ConfigError(f"{self.source}: {key} is {_short(value)}: it must be true or false")
        return value

    def words(self, key: str, num: int, known: tuple[str, ...]) -> list[str] | None:
        """Return a list of `num` of the known words, or None."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != num:
            raise ConfigError(f"{self.source}: {key} must be a list of {num} entries, one per layer")
        for word in value:
            if word not in known:
                raise ConfigError(
                    f"{self.source}: {key} has {_short(word)}, which the cost model does not know:"
                    f" known are {', '.join(known)}"
                )
        return value

    @property
    def num_layers(self) -> int:
        """Number of decoder layers."""
        return self.count("num_hidden_layers", most=MOST_LAYERS)


def _above(value: object, most: int) -> bool:
    return isinstance(value, int) and value > most


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


EXPERT_KEYS = ("n_routed_experts", "num_local_experts", "num_experts")
"""Other families' names for experts, which a config saved by a later transformers may have."""


def dense(fields: Fields, index: int) -> Mlp | Experts:
    """Return the gated MLP of a dense layer."""
    return Mlp(fields.count("intermediate_size"))


def mixtral_experts(fields: Fields, index: int) -> Mlp | Experts:
    """Return experts in every layer (Mixtral, gpt-oss, OLMoE, MiniMax-M2)."""
    return _experts(fields, fields.count("intermediate_size"), _count_of_experts(fields, "num_local_experts"))


def minimax_experts(fields: Fields, index: int) -> Mlp | Experts:
    """Return Mixtral's experts, whose router vLLM computes in float32 (its `minimax_m2.py`)."""
    mlp = mixtral_experts(fields, index)
    return replace(mlp, routes_in_float32=True) if isinstance(mlp, Experts) else mlp


def qwen_experts(fields: Fields, index: int) -> Mlp | Experts:
    """Return experts in every n-th layer, with one shared by all tokens in Qwen2-MoE."""
    only_dense = fields.get("mlp_only_layers") or []
    if not isinstance(only_dense, list):
        raise ConfigError(f"{fields.source}: mlp_only_layers must be a list of layers")
    if index in only_dense or (index + 1) % fields.count("decoder_sparse_step", 1):
        return dense(fields, index)
    inner = fields.count("moe_intermediate_size")
    shared = fields.count("shared_expert_intermediate_size", 0, least=0)
    num = _count_of_experts(fields, "num_experts")
    return _experts(fields, inner, num, shared, gates_shared=shared > 0)


def deepseek_experts(fields: Fields, index: int) -> Mlp | Experts:
    """Return dense layers first, then routed experts besides shared ones (DeepSeek, Kimi, GLM, dots)."""
    kinds = fields.words("mlp_layer_types", fields.num_layers, ("dense", "sparse"))
    first, step = fields.count("first_k_dense_replace", 0, least=0), fields.count("moe_layer_freq", 1)
    if kinds[index] == "dense" if kinds else index < first or index % step:
        return dense(fields, index)
    inner = fields.count("moe_intermediate_size")
    shared = inner * fields.count("n_shared_experts", 0, least=0)
    return _experts(fields, inner, _count_of_experts(fields, "n_routed_experts"), shared)


def llama4_experts(fields: Fields, index: int) -> Mlp | Experts:
    """Return routed experts besides an equally wide shared one in every n-th layer, else a wider MLP."""
    step, listed = fields.count("interleave_moe_layer_step", 1, least=0), fields.get("moe_layers")
    if listed is not None and not isinstance(listed, list):
        raise ConfigError(f"{fields.source}: moe_layers must be a list of layers")
    if not (step and (index + 1) % step == 0 if listed is None else index in listed):
        return Mlp(fields.count("intermediate_size_mlp"))
    inner = fields.count("intermediate_size")
    return _experts(fields, inner, _count_of_experts(fields, "num_local_experts"), inner)


def granite_experts(fields: Fields, index: int) -> Mlp | Experts:
    """Return experts besides a shared MLP, or that MLP alone if there are none (Granite 3 and 4)."""
    shared = fields.count("shared_intermediate_size", 0, least=0)
    num = fields.count("num_local_experts", 0, least=0)
    if num:
        return _experts(fields, fields.count("intermediate_size"), num, shared)
    return Mlp(shared) if shared else dense(fields, index)


def ernie_experts(fields: Fields, index: int) -> Mlp | Experts:
    """Return experts in every n-th layer of a range, besides shared ones (Ernie 4.5)."""
    first, step = fields.count("moe_layer_start_index", 0, least=0), fields.count("moe_layer_interval", 1)
    last = fields.count("moe_layer_end_index", fields.num_layers - 1, least=-1)
    last = fields.num_layers - 1 if last == -1 else last
    if not first <= index <= last or (index + 1) % step:
        return dense(fields, index)
    inner = fields.count("moe_intermediate_size")
    shared = inner * fields.count("moe_num_shared_experts", 0, least=0)
    return _experts(fields, inner, fields.count("moe_num_experts"), shared, per_token="moe_k")


def _count_of_experts(fields: Fields, own: str) -> int:
    key = next((key for key in (own, *EXPERT_KEYS) if fields.get(key)), own)
    other = next((other for other in EXPERT_KEYS if fields.get(other) not in (None, fields.get(key))), None)
    if other is not None and fields.get(other):
        raise ConfigError(
            f"{fields.source}: {key} is {fields.get(key)!r:.60} and {other} is {fields.get(other)!r:.60}:"
            " they name the same experts, leave one out"
        )
    return fields.count(key, most=100_000)


def _experts(
    fields: Fields,
    inner: int,
    num: int,
    shared: int = 0,
    *,
    gates_shared: bool = False,
    per_token: str = "num_experts_per_tok",
) -> Experts:
    return Experts(
        inner, num, per_token=fields.count(per_token, most=num), shared=shared, gates_shared=gates_shared
    )


Windows = list[int | None]
CHUNK_TYPES = ("full_attention", "chunked_attention")
TYPES = ("full_attention", "sliding_attention")


def no_window(fields: Fields) -> Windows:
    """Return no windows: all layers attend to the whole context."""
    return _listed(fields) or [None] * fields.num_layers


def in_all_layers(fields: Fields) -> Windows:
    """Return the window in all layers, if there is one (Mistral, Phi-3)."""
    return _listed(fields) or [fields.maybe("sliding_window")] * fields.num_layers


def from_layer(fields: Fields) -> Windows:
    """Return windows in layers from `max_window_layers` on, if `use_sliding_window` is set (Qwen)."""
    num = fields.num_layers
    if not fields.flag("use_sliding_window"):
        fields.words("layer_types", num, TYPES)  # refuses other kinds of layers
        return [None] * num
    first = fields.count("max_window_layers", 28, least=0)
    window = fields.count("sliding_window", 4096)
    return _listed(fields) or [window if index >= first else None for index in range(num)]


def every_other(fields: Fields) -> Windows:
    """Return windows in the first layer, the third, and so on (Gemma 2, gpt-oss)."""
    window = fields.count("sliding_window")
    return _listed(fields) or [None if index % 2 else window for index in range(fields.num_layers)]


def every_nth_is_full(fields: Fields) -> Windows:
    """Return windows in all but every `sliding_window_pattern`-th layer (Gemma 3, Command R7B, OLMo 3)."""
    window, pattern = fields.count("sliding_window"), fields.count("sliding_window_pattern", 6)
    full = (index % pattern == pattern - 1 for index in range(fields.num_layers))
    return _listed(fields) or [None if is_full else window for is_full in full]


def by_pattern(fields: Fields) -> Windows:
    """Return windows by `sliding_window_pattern`, `LLLG` or a number; without a window, none (EXAONE 4)."""
    window, pattern = fields.maybe("sliding_window"), fields.get("sliding_window_pattern")
    if window is None:
        return [None] * fields.num_layers
    if isinstance(pattern, str) and pattern and set(pattern) <= set("LG"):
        is_full = [pattern[index % len(pattern)] == "G" for index in range(fields.num_layers)]
        is_full[-1:] = [True]
        return _listed(fields) or [None if full else window for full in is_full]
    return every_nth_is_full(fields) if pattern is not None else _listed(fields) or _unsaid(fields)


def from_layer_if_any(fields: Fields) -> Windows:
    """Return windows in layers from `max_window_layers` on, if there is a window (dots.llm1)."""
    window, num = fields.maybe("sliding_window"), fields.num_layers
    first = fields.count("max_window_layers", num, least=0)
    return _listed(fields) or [window if index >= first else None for index in range(num)]


INDEXED_TYPES = ("indexed_attention", "deepseek_sparse_attention")


def indexed_in_all_layers(fields: Fields) -> Windows:
    """Return no windows: all layers have sparse attention with their own indexer (DeepSeek-V3.2, GLM-5)."""
    num = fields.num_layers
    fields.words("layer_types", num, INDEXED_TYPES)
    fields.words("indexer_types", num, ("full",))
    return [None] * num


LINEAR_TYPES = ("full_attention", "linear_attention")


def linear_layers(fields: Fields) -> list[bool]:
    """Return whether each layer's attention is linear: by `layer_types`, or all but every n-th."""
    num = fields.num_layers
    types = fields.words("layer_types", num, LINEAR_TYPES)
    if types is not None:
        return [kind == "linear_attention" for kind in types]
    interval = fields.count("full_attention_interval", 4)
    return [(index + 1) % interval > 0 for index in range(num)]


def attention_in_all_layers(fields: Fields) -> Windows:
    """Return no windows for Granite 4 without state-space layers: `layer_types` must be `attention`
    throughout.
    """
    num, types = fields.num_layers, fields.get("layer_types") or fields.get("layers_block_type")
    if types not in (["attention"] * num, ["full_attention"] * num):
        raise ConfigError(
            f"{fields.source}: model_type is 'granitemoehybrid' and layer_types are not all attention: it has"
            " state-space layers, which the cost model does not know"
        )
    return [None] * num


def _unsaid(fields: Fields) -> Windows:
    raise ConfigError(
        f"{fields.source}: sliding_window is given without sliding_window_pattern or layer_types, which say"
        " where: add one, or set sliding_window to null"
    )


def chunks_where_rope(fields: Fields) -> Windows:
    """Return chunks in the layers with rotary embeddings, by default three of four (Llama 4).

    These are the ones in `no_rope_layers`. A chunk of 0 means none; by default it is 8,192.
    """
    num, chunk = fields.num_layers, fields.count("attention_chunk_size", 8192, least=0)
    interval = fields.count("no_rope_layer_interval", 4)
    has_rope = [int((index + 1) % interval != 0) for index in range(num)]
    given = fields.get("no_rope_layers")
    if given:
        if not isinstance(given, list) or len(given) != num or any(each not in (0, 1) for each in given):
            raise ConfigError(f"{fields.source}: no_rope_layers must be a list of {num} zeros and ones")
        has_rope = given
    types = fields.words("layer_types", num, CHUNK_TYPES)
    if types is not None and types != [CHUNK_TYPES[rope] for rope in has_rope]:
        raise ConfigError(
            f"{fields.source}: layer_types and no_rope_layers name other layers as chunked: make them agree"
        )
    return [chunk or None if rope else None for rope in has_rope]


def _listed(fields: Fields) -> Windows | None:
    types = fields.words("layer_types", fields.num_layers, TYPES)
    if types is None:
        return None
    return [None if kind == TYPES[0] else fields.count("sliding_window") for kind in types]
