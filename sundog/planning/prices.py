"""Prices of GPUs, from a file."""

from collections.abc import Mapping
from typing import Any

from sundog.actors.config import ConfigError


def read_prices(path: str) -> dict[str, float]:
    """The price of each GPU an hour, by name, as in `h100 = 2.99`; raises ConfigError."""
    from sundog.sim.files.toml import read_toml

    return checked_prices(read_toml(path), path)


def checked_prices(values: Mapping[str, Any], path: str) -> dict[str, float]:
    """Return the prices as numbers; raises ConfigError that names `path` for one that is no price."""
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
    """The price of a GPU an hour, whatever its link; 1 if there are no prices, so that GPUs are counted."""
    if prices is None:
        return 1.0
    name = gpu.partition(":")[0]
    if name not in prices:
        raise ConfigError(f"--prices has none for {name}, only for {', '.join(prices)}")
    return prices[name]
