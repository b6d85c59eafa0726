"""The MLP of each layer, by each family's own rule and in its own fields."""

from actors.core.config import ConfigError
from sim.hardware.fields import Fields
from sim.hardware.layers import Experts, Mlp

EXPERT_KEYS = ("n_routed_experts", "num_local_experts", "num_experts")
"""A config that was saved again by a later transformers may name its experts as another family does."""


def dense(fields: Fields, index: int) -> Mlp | Experts:
    """A gated MLP."""
    return Mlp(fields.count("intermediate_size"))


def mixtral_experts(fields: Fields, index: int) -> Mlp | Experts:
    """Experts in every layer (Mixtral, gpt-oss, OLMoE, MiniMax-M2)."""
    return _experts(fields, fields.count("intermediate_size"), _count_of_experts(fields, "num_local_experts"))


def qwen_experts(fields: Fields, index: int) -> Mlp | Experts:
    """Experts in every n-th layer, with one that all tokens share in Qwen2-MoE."""
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
    """Dense layers first, then routed experts beside shared ones (DeepSeek, Kimi, GLM, dots)."""
    kinds = fields.words("mlp_layer_types", fields.num_layers, ("dense", "sparse"))
    first, step = fields.count("first_k_dense_replace", 0, least=0), fields.count("moe_layer_freq", 1)
    if kinds[index] == "dense" if kinds else index < first or index % step:
        return dense(fields, index)
    inner = fields.count("moe_intermediate_size")
    shared = inner * fields.count("n_shared_experts", 0, least=0)
    return _experts(fields, inner, _count_of_experts(fields, "n_routed_experts"), shared)


def llama4_experts(fields: Fields, index: int) -> Mlp | Experts:
    """In every n-th layer routed experts beside one of the same width that all share, else a wider MLP."""
    step, listed = fields.count("interleave_moe_layer_step", 1, least=0), fields.get("moe_layers")
    if listed is not None and not isinstance(listed, list):
        raise ConfigError(f"{fields.source}: moe_layers must be a list of layers")
    if not (step and (index + 1) % step == 0 if listed is None else index in listed):
        return Mlp(fields.count("intermediate_size_mlp"))
    inner = fields.count("intermediate_size")
    return _experts(fields, inner, _count_of_experts(fields, "num_local_experts"), inner)


def granite_experts(fields: Fields, index: int) -> Mlp | Experts:
    """Experts beside a shared MLP, or that MLP alone where there are none (Granite 3 and 4)."""
    shared = fields.count("shared_intermediate_size", 0, least=0)
    num = fields.count("num_local_experts", 0, least=0)
    if num:
        return _experts(fields, fields.count("intermediate_size"), num, shared)
    return Mlp(shared) if shared else dense(fields, index)


def ernie_experts(fields: Fields, index: int) -> Mlp | Experts:
    """Experts in every n-th layer of a range, beside shared ones (Ernie 4.5)."""
    first, step = fields.count("moe_layer_start_index", 0, least=0), fields.count("moe_layer_interval", 1)
    last = fields.count("moe_layer_end_index", fields.num_layers - 1, least=-1)
    last = fields.num_layers - 1 if last == -1 else last
    if not first <= index <= last or (index + 1) % step:
        return dense(fields, index)
    inner = fields.count("moe_intermediate_size")
    shared = inner * fields.count("moe_num_shared_experts", 0, least=0)
    return _experts(fields, inner, fields.count("moe_num_experts"), shared, per_token="moe_k")


def _count_of_experts(fields: Fields, own: str) -> int:
    """The number of routed experts, under the family's own key or another family's."""
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
    return Experts(inner, num, fields.count(per_token, most=num), shared, gates_shared)
