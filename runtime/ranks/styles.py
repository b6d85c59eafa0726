"""The styles of the library's plans that ranks follow, and what they mean. Nothing here imports torch."""

import re

SUMMED = {"rowwise": False, "rowwise_split_input": True, "rowwise_rep": True}
"""Each rank has some inputs' weights, and the ranks' answers are summed; whether it is given all inputs."""
GATHERED = ("colwise_gather_output", "colwise_rep")
"""Each rank has some outputs' weights, and all outputs are gathered."""
KEPT = ("moe_tp_experts", "moe_identity_expert")
"""The library's own hooks do what is needed: they sum what plain tensors have made."""
ALONE = (
    "colwise",
    "packed_colwise",
    "packed_rowwise",
    "replicated_with_grad_allreduce",
    "mla_kv_a_proj",
    "replicate",
    "local_params",
)
"""A rank needs nothing of the others to compute its share."""
STYLES = frozenset((*SUMMED, *GATHERED, *KEPT, *ALONE, "embedding_rowwise"))


def generic(name: str) -> str:
    """A module's name as plans have it: `*` for the number of a layer."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)
