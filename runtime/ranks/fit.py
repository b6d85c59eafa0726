"""Check whether ranks can share a model, from its folder, before any of them starts.

Lists the styles of the library's plans that ranks support, and their meanings. Nothing here imports torch.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from sundog.runtime.checkpoint.facts import LoadError
from sundog.runtime.checkpoint.support import check_supported, read_config

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


import re

SUMMED = {"rowwise": False, "rowwise_split_input": True, "rowwise_rep": True}
"""Styles in which a rank has the weights of some inputs, and outputs are summed; the value says whether it
gets all inputs.
"""
GATHERED = ("colwise_gather_output", "colwise_rep")
"""Styles in which a rank has the weights of some outputs, which are then gathered from all ranks."""
KEPT = ("moe_tp_experts", "moe_identity_expert")
"""Styles handled by the library's own hooks, which sum plain tensors."""
ALONE = (
    "colwise",
    "packed_colwise",
    "packed_rowwise",
    "replicated_with_grad_allreduce",
    "mla_kv_a_proj",
    "replicate",
    "local_params",
)
"""Styles that need no communication."""
STYLES = frozenset((*SUMMED, *GATHERED, *KEPT, *ALONE, "embedding_rowwise"))


def generic(name: str) -> str:
    """Return a module's name in the form of plans: `*` for the number of a layer."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


KEYS = ("k_proj", "qkv_proj", "query_key_value", "kv_b_proj")
"""Names of layers that compute keys, alone or with others."""


def check_ranks(folder: Path, num_ranks: int) -> None:
    """Raise LoadError if `num_ranks` ranks cannot share a model, with the reason."""
    if num_ranks == 1:
        return
    asked = f"--tensor-parallel-size is {num_ranks}"
    for module in ("accelerate", "transformers.distributed"):
        if find_spec(module) is None:
            raise LoadError(f"{asked}, which needs {module}: get it by `pip install -U 'sundog[engine]'`")
    check_supported(folder)
    config = read_config(folder)
    if reason := why_not_shared(config, num_ranks):
        raise LoadError(f"{asked}, but {folder} ({config.model_type}) {reason}")


def why_not_shared(config: "PreTrainedConfig", num_ranks: int) -> str | None:
    """Return why the model of this configuration cannot be shared, by its kind or sizes; None otherwise."""
    if getattr(config, "quantization_config", None) is not None:
        return "is quantised, and only whole weights are shared among ranks; leave it at 1"
    plan: dict[str, str] = getattr(config, "base_model_tp_plan", None) or {}
    if not plan:
        return "has no tp_plan in transformers, which says how ranks share its layers; leave it at 1"
    if unknown := sorted(set(plan.values()) - STYLES):
        return f"has layers that are shared as {unknown[0]}, which ranks here do not; leave it at 1"
    heads = config.num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    if not any(name.rpartition(".")[2] in KEYS and style == "colwise" for name, style in plan.items()):
        return None  # every rank has all heads
    if key_heads < num_ranks:
        return f"has {key_heads} KV heads, fewer than ranks: give at most {key_heads}"
    if key_heads % num_ranks or heads % num_ranks:
        fitting = [str(n) for n in range(2, key_heads + 1) if not (key_heads % n or heads % n)]
        return (
            f"has {heads} heads and {key_heads} KV heads, which {num_ranks} ranks cannot share evenly:"
            f" give {', '.join(fitting) or '1'}"
        )
    return None
