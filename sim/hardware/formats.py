"""Formats of numbers: what a weight takes in memory, and the units that multiply it."""

from dataclasses import dataclass, replace

from sundog.actors.core.config import ConfigError
from sundog.actors.core.names import unknown

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
    """The canonical name of a dtype (`bf16` is bfloat16); raises ConfigError for an unknown one."""
    lower = name.lower().removeprefix("torch.")
    full = DTYPE_ALIASES.get(lower, lower)
    if full not in DTYPE_BYTES:
        raise unknown("dtype", name, [*DTYPE_BYTES, *DTYPE_ALIASES])
    return full


def kv_dtype_name(name: str) -> str | None:
    """The dtype that `--kv-cache-dtype` names; None, where keys and values are as activations are."""
    if name == "auto":
        return None
    dtype = dtype_name(name)
    if dtype == "float32":
        raise ConfigError(f"kv_cache_dtype is {name}: known are auto, bfloat16, float16, fp8")
    return dtype


ALL_PARTS = frozenset(("attention", "dense", "experts"))


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """A format in which quantised weights are stored and multiplied.

    `bits` of a weight include its share of the scales. `units` are those of the GPU it is multiplied
    in, as its data sheet calls them; None, where it is always turned into 16 bits first. `parts`
    are what is quantised of the projections of `attention`, the `dense` and shared MLP and the routed
    `experts`; embeddings, output head, routers, norms and biases never are.
    """

    name: str
    bits: float
    units: str | None
    parts: frozenset[str] = ALL_PARTS

    def without(self, part: str) -> "WeightFormat":
        """Return the same format with that part left in 16 bits."""
        return replace(self, parts=self.parts - {part})
