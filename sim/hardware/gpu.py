"""GPU, by its data sheet and a handful of efficiencies (`gpus/*.toml`)."""

from dataclasses import fields, replace
from importlib.resources import files
from typing import Any

from sundog.actors.core.config import ConfigError
from sundog.actors.core.names import normal, unknown
from sundog.actors.core.records import dataclass
from sundog.sim.files.toml import parse_toml, read_toml
from sundog.sim.hardware.formats import DTYPE_BYTES

ALIASES = {
    "a100": "a100-80gb",
    "a100-80g": "a100-80gb",
    "a100-40g": "a100-40gb",
    "4090": "rtx-4090",
    "rtx4090": "rtx-4090",
    "rtxpro6000": "rtx-pro-6000",
    "rtx-pro6000": "rtx-pro-6000",
    "pro-6000": "rtx-pro-6000",
}

PCIE_5 = 50e9
"""Bytes per second that a copy over 16 lanes of PCIe 5 reaches: four fifths of the lanes' 63 GB/s."""
LINKS = ("nvlink", "pcie", "pcie-p2p")
VENDORS = ("nvidia", "amd")
MACHINE_GPUS = 8
"""Usual largest number of GPUs that one machine links to each other."""
INNER = ("efficiency", "peak_flops_per_s")
UNITS = (*DTYPE_BYTES, "int8", "float4")
"""Units for which a GPU may have a peak."""
WHOLE = ("memory_bytes", "num_sms", "l2_bytes")
BOUNDS = {
    "memory_bytes": (1e6, 1e13),
    "num_sms": (1, 1e5),
    "l2_bytes": (1e3, 1e12),
    "power_w": (0.1, 1e5),
    "compute_capability": (1, 100),
    "memory_bandwidth_bytes_per_s": (1e6, 1e16),
    "interconnect_bytes_per_s": (1e6, 1e16),
    "host_bytes_per_s": (1e6, 1e16),
    "allreduce_latency_s": (1e-9, 1),
    "layer_launch_s": (1e-9, 1),
    "step_launch_s": (1e-9, 10),
}
PEAK = (1e6, 1e20)
"""Bounds of plausible numbers; others are typos or in another unit."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Fraction of a peak that real kernels reach, by what bounds them.

    `gemm_flops` and `attention_flops` are fractions of the dense peak for large matrix products and for
    prefill attention; `weight_bandwidth` and `kv_bandwidth` are fractions of the memory bandwidth when
    streaming weights or activations, and when gathering paged keys and values.
    """

    gemm_flops: float
    weight_bandwidth: float
    attention_flops: float
    kv_bandwidth: float


@dataclass(frozen=True, slots=True)
class Gpu:
    """GPU; bytes and seconds are decimal, FLOP/s dense, the interconnect per direction.

    `link` connects the GPUs of a machine: `nvlink`; `pcie-p2p`, over PCIe into each other's memory; or
    `pcie`, without that access, through host memory, as in most virtual machines and with consumer cards.
    `layer_launch_s` is the fixed time of a layer's small kernels (norms, rotary embedding, attention set-up),
    `step_launch_s` that of a whole step (embedding, sampling).
    """

    name: str
    memory_bytes: int
    memory_bandwidth_bytes_per_s: float
    power_w: float
    compute_capability: float
    num_sms: int
    l2_bytes: int
    link: str
    interconnect_bytes_per_s: float
    allreduce_latency_s: float
    layer_launch_s: float
    step_launch_s: float
    peak_flops_per_s: dict[str, float]
    efficiency: Efficiency
    host_bytes_per_s: float = PCIE_5
    """Bytes per second, each way, between the GPU's memory and the host's; optional in a file."""
    vendor: str = "nvidia"
    """Maker, which determines how a cluster counts the GPU and which image serves on it; optional in a file.
    """
    key: str = ""
    """Name of its file in this package; empty for a user's file."""

    @property
    def splits_contexts(self) -> bool:
        """Whether attention in a step with a chunk splits long contexts (FlashAttention 3 and later)."""
        return 9 <= self.compute_capability < 12

    def peak(self, dtype: str) -> float:
        """Return dense FLOP/s in `dtype`; raises ConfigError if the GPU has no such units."""
        if dtype not in self.peak_flops_per_s:
            known = ", ".join(sorted(self.peak_flops_per_s))
            raise ConfigError(f"{self.name} does not compute in {dtype}; it knows {known}: change --dtype")
        return self.peak_flops_per_s[dtype]


def known_gpus() -> list[str]:
    """Return the names of the GPUs described in this package, sorted."""
    entries = (files("sundog.sim.hardware") / "gpus").iterdir()
    return sorted(entry.name[:-5] for entry in entries if entry.name.endswith(".toml"))


def load_gpu(name: str) -> Gpu:
    """Return the GPU of that name (ignoring case, blanks and hyphens), or from a TOML file at that path.

    A suffix `:nvlink`, `:pcie` or `:pcie-p2p` sets its machine's link. Raises ConfigError which suggests the
    nearest name and lists all.
    """
    name, colon, link = name.partition(":")
    gpu = _load(name)
    if not colon:
        return gpu
    _check_link(link, f"gpu {name}:{link}")
    return replace(gpu, link=link)


def _load(name: str) -> Gpu:
    if name.endswith(".toml"):
        return _parse(read_toml(name), name)
    known = known_gpus()
    key = ALIASES.get(normal(name), normal(name))
    if key not in known:
        raise unknown("GPU", name, known, also=", or the path of a .toml file")
    text = (files("sundog.sim.hardware") / "gpus" / f"{key}.toml").read_text("utf-8")
    return replace(_parse(parse_toml(text, key), key), key=key)


def _parse(table: dict[str, Any], source: str) -> Gpu:
    table = {"host_bytes_per_s": PCIE_5, "vendor": "nvidia", **table}
    _check_keys(table, {f.name for f in fields(Gpu)} - {"key"}, source)
    inner = [table[key] for key in INNER]
    if not all(isinstance(value, dict) and value for value in inner):
        raise ConfigError(f"{source}: efficiency and peak_flops_per_s must be tables")
    _check_keys(inner[0], {f.name for f in fields(Efficiency)}, f"{source}: efficiency")
    if not isinstance(table["name"], str) or not table["name"].strip():
        raise ConfigError(f"{source}: name is {table['name']!r}: it must be a text")
    for key, bounds in BOUNDS.items():
        _check_number(source, key, table[key], *bounds)
        if key in WHOLE and table[key] != int(table[key]):
            raise ConfigError(f"{source}: {key} is {table[key]}: it must be a whole number")
    for key, value in table["peak_flops_per_s"].items():
        if key not in UNITS:
            raise unknown(f"{source}: dtype in peak_flops_per_s", key, UNITS)
        _check_number(source, f"peak_flops_per_s.{key}", value, *PEAK)
    for key, value in table["efficiency"].items():
        _check_number(source, f"efficiency.{key}", value, 0.001, 1)
    _check_link(table["link"], source)
    if table["vendor"] not in VENDORS:
        raise ConfigError(f"{source}: vendor is {table['vendor']!r}: known are {', '.join(VENDORS)}")
    whole = {key: int(table[key]) for key in WHOLE}
    return Gpu(**{**table, **whole, "efficiency": Efficiency(**table["efficiency"])})


def _check_number(source: str, key: str, value: object, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{source}: {key} is {value!r}: it must be a number")
    if not least <= value <= most:
        raise ConfigError(f"{source}: {key} is {value}: it must be from {least:g} to {most:g}")


def _check_link(link: object, source: str) -> None:
    if link not in LINKS:
        raise ConfigError(f"{source}: link is {link!r}: known are {', '.join(LINKS)}")


def _check_keys(table: dict[str, object], expected: set[str], source: str) -> None:
    missing, extra = expected - table.keys(), table.keys() - expected
    if missing or extra:
        what = [f"missing {key}" for key in sorted(missing)]
        what += [f"unknown key {key}" for key in sorted(extra)]
        raise ConfigError(f"{source}: {', '.join(what)}")
