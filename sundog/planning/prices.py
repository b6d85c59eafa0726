"""Prices of GPUs, from a file."""

from collections.abc import Mapping
from typing import Any

from sundog.actors.config import ConfigError


def read_prices(path: str) -> dict[str, float]:
    """Read the price of each GPU per hour, by name, as in `h100 = 2.99`; raises ConfigError."""
    from sundog.sim.files.toml import read_toml

    return checked_prices(read_toml(path), path)


def checked_prices(values: Mapping[str, Any], path: str) -> dict[str, float]:
    """Return the prices as numbers; raises ConfigError that names `path` for an invalid one."""
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1e9:
            raise ConfigError(
                f"{path}: {name} is {value!r}: give the price of a GPU an hour, as in h100 = 2.99"
            )
        found[name] = float(value)
    if not found:
        raise ConfigError(f"{path} has no prices: give a line for each GPU, as in h100 = 2.99")
    return found


def price_of(gpu: str, prices: Mapping[str, float] | None) -> float:
    """Return the price of a GPU per hour, whatever its link; 1 without prices, so that costs are numbers of
    GPUs.
    """
    if prices is None:
        return 1.0
    name = gpu.partition(":")[0]
    if name not in prices:
        raise ConfigError(f"--prices has none for {name}, only for {', '.join(prices)}")
    return prices[name]
