"""Number formats: a weight's size in memory, and the units that multiply it."""

from dataclasses import replace

from sundog.actors.core.config import ConfigError
from sundog.actors.core.names import unknown
from sundog.actors.core.records import dataclass

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


def dtype_name(name: str) -> str:
    """Return the canonical name of a dtype (`bf16` is bfloat16); raises ConfigError for an unknown one."""
    lower = name.lower().removeprefix("torch.")
    full = DTYPE_ALIASES.get(lower, lower)
    if full not in DTYPE_BYTES:
        raise unknown("dtype", name, [*DTYPE_BYTES, *DTYPE_ALIASES])
    return full


def kv_dtype_name(name: str) -> str | None:
    """Return the dtype of `--kv-cache-dtype`; None if keys and values have the activations' type."""
    if name == "auto":
        return None
    dtype = dtype_name(name)
    if dtype == "float32":
        raise ConfigError(f"kv_cache_dtype is {name}: known are auto, bfloat16, float16, fp8")
    return dtype


ALL_PARTS = frozenset(("attention", "dense", "experts"))


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Format of quantised weights in storage and in multiplication.

    `bits` of a weight include its share of the scales. `units` are the GPU's units that multiply it, by their
    data-sheet name; None if it is always converted to 16 bits first. `parts` are the quantised projections:
    of `attention`, the `dense` and shared MLP and the routed `experts`; embeddings, output head, routers,
    norms and biases never are.
    """

    name: str
    bits: float
    units: str | None
    parts: frozenset[str] = ALL_PARTS

    def without(self, part: str) -> "WeightFormat":
        """Return the same format with that part left in 16 bits."""
        return replace(self, parts=self.parts - {part})
