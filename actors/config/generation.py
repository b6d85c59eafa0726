"""Sampling defaults of a server, from its model's generation_config.json.

vLLM reads temperature, top_k and top_p from that file, overridden by `--override-generation-config`;
otherwise the temperature is 1 and no filter is applied.
"""

import json
from collections.abc import Mapping

from sundog.actors.core.config import ConfigError
from sundog.actors.core.names import did_you_mean
from sundog.actors.core.records import dataclass

KEYS = ("temperature", "top_k", "top_p")
EXAMPLE = '{"temperature": 0}, or {"top_k": 20, "top_p": 0.95}'


@dataclass(frozen=True, slots=True)
class Drawing:
    """Sampling mode: greedy, or at random, from fewer tokens with a filter."""

    is_greedy: bool = False
    has_top_k: bool = False
    has_top_p: bool = False


GREEDY = Drawing(is_greedy=True)


def drawing_of(given: Mapping[str, float]) -> Drawing:
    """Return the sampling mode of these settings; other keys are ignored."""
    if given.get("temperature") == 0:
        return GREEDY
    top_k, top_p = (given.get(key) for key in KEYS[1:])
    return Drawing(False, top_k is not None and top_k > 0, top_p is not None and top_p < 1)


def settings_in(given: object, source: str) -> dict[str, float]:
    """Return the settings in a generation_config.json; ConfigError names `source`."""
    if not isinstance(given, dict):
        raise ConfigError(f"{source} is no JSON object; an example is {EXAMPLE}")
    for key in KEYS:
        value = given.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value < 0):
            raise ConfigError(f"{source}: {key} is {value!r}: give a number of at least 0")
    return {key: given[key] for key in KEYS if given.get(key) is not None}


def parse_override(text: str) -> dict[str, float]:
    """Parse `--override-generation-config`; ConfigError names the key and its allowed values."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"it is no JSON ({error}); an example is {EXAMPLE}") from None
    settings = settings_in(given, "it")
    for key in given:
        if key not in KEYS:
            raise ConfigError(f"it has {key!r}, which is not priced.{did_you_mean(key, KEYS)}")
    return settings
