"""`--speculative-config`: how drafts are made, under vLLM's names, parsed strictly.

    {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}
    {"model": "DRAFT", "num_speculative_tokens": 4}

`acceptance` and `proposed` are for simulated GPUs only; a real model determines both itself.
"""

import json
import math
from collections.abc import Mapping
from typing import NamedTuple

from sundog.actors.core.config import ConfigError
from sundog.actors.core.names import did_you_mean
from sundog.actors.core.records import dataclass

METHODS = ("ngram", "draft_model")
KEYS = (
    "method",
    "model",
    "num_speculative_tokens",
    "prompt_lookup_min",
    "prompt_lookup_max",
    "acceptance",
    "proposed",
)
MOST_TOKENS = 128
EXAMPLE = '{"method": "ngram", "num_speculative_tokens": 4}'
DEFAULT_LOOKUP = 5
"""Bound of n-grams that vLLM uses if neither bound is given."""


Rates = tuple[float, ...]


class MeasuredRates(NamedTuple):
    """Drafts of each position that were proposed and accepted, decodes, and the tokens that they produced.

    Accepted drafts behind the end of an answer count as accepted and as produced.
    """

    proposed: Rates
    accepted: Rates
    num_decodes: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """Configuration of speculative decoding.

    Up to `num_tokens` drafts are proposed per step. `model` is the draft model's folder, or its name in a
    simulation. Prompt lookup matches n-grams of `lookup_min` to `lookup_max` tokens. `acceptance` is one
    probability (that a draft is accepted if all before it were), a list (for each position, the probability
    that all drafts up to it are accepted), or a record's file. `proposed` is the same for the probability of
    being proposed. `measured` holds a record's counts per request and position: proposed drafts, accepted
    drafts.
    """

    method: str
    num_tokens: int
    model: str | None = None
    lookup_min: int = DEFAULT_LOOKUP
    lookup_max: int = DEFAULT_LOOKUP
    acceptance: float | tuple[float, ...] | str | None = None
    proposed: float | tuple[float, ...] | None = None
    measured: Mapping[str, MeasuredRates] | None = None

    @property
    def num_lookahead_tokens(self) -> int:
        """Number of KV slots that a draft model needs beyond the step's own tokens."""
        return self.num_tokens if self.method == "draft_model" else 0


def parse_speculative_config(text: str) -> SpeculativeConfig:
    """Parse the configuration in a JSON object; ConfigError names the key and its allowed values."""
    try:
        given: object = json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"it is no JSON ({error}); give {EXAMPLE}") from None
    if not isinstance(given, dict):
        raise ConfigError(f"give a JSON object, as in {EXAMPLE}")
    for key in given:
        if key not in KEYS:
            raise ConfigError(f"it has {key!r}, which is not known.{did_you_mean(key, KEYS)}")
    model = given.get("model")
    if model is not None and not (isinstance(model, str) and model.strip()):
        raise _wrong("model", model, "give a model's folder")
    method = given.get("method", None if model is None else "draft_model")
    if method not in METHODS:
        raise _wrong("method", method, f"give one of {', '.join(METHODS)}, or a model")
    if (method == "draft_model") != (model is not None):
        why = "a draft model needs one" if model is None else "only a draft model has one"
        raise _wrong("model", model, f"{why}; the method is {method}")
    if method != "ngram" and (keys := [key for key in KEYS[3:5] if key in given]):
        raise _wrong(keys[0], given[keys[0]], "only the method ngram looks prompts up; leave it out")
    num_tokens = _whole(given, "num_speculative_tokens", MOST_TOKENS)
    if num_tokens is None:
        raise ConfigError(f"it lacks num_speculative_tokens; give a whole number from 1 to {MOST_TOKENS}")
    least, most = _lookup(given)
    record = given.get("acceptance")
    record = record if isinstance(record, str) and record.strip() else None
    return SpeculativeConfig(
        method,
        num_tokens,
        model=model,
        lookup_min=least,
        lookup_max=most,
        acceptance=record or _chances(given, "acceptance", num_tokens),
        proposed=_chances(given, "proposed", num_tokens),
    )


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for at, (key, _) in enumerate(pairs) if key in dict(pairs[:at]))
        raise ValueError(f"{twice} is given twice")
    return found


def _lookup(given: dict[str, object]) -> tuple[int, int]:
    """Return the bounds of n-grams; a single given bound is both."""
    least, most = (_whole(given, key, 1024) for key in ("prompt_lookup_min", "prompt_lookup_max"))
    least, most = least or most or DEFAULT_LOOKUP, most or least or DEFAULT_LOOKUP
    if least > most:
        raise _wrong("prompt_lookup_min", least, f"give at most prompt_lookup_max, {most}")
    return least, most


def _chances(given: dict[str, object], key: str, num_tokens: int) -> float | tuple[float, ...] | None:
    value = given.get(key)
    if value is None:
        return None
    if _is_chance(value):
        return float(value)  # type: ignore[arg-type]  # a number, as has been checked
    if isinstance(value, list) and len(value) == num_tokens and all(map(_is_chance, value)):
        if value == sorted(value, reverse=True):
            return tuple(map(float, value))
        raise _wrong(key, value, "a later position cannot have a higher chance than those before it")
    raise _wrong(key, value, f"give a number from 0 to 1, or one for each of the {num_tokens} positions")


def _is_chance(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and 0 <= value <= 1  # type: ignore[arg-type,operator]  # as above


def _whole(given: dict[str, object], key: str, most: int) -> int | None:
    value = given.get(key)
    if key in given and not (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most):
        raise _wrong(key, value, f"give a whole number from 1 to {most}")
    return value if isinstance(value, int) else None


def _wrong(key: str, value: object, right: str) -> ConfigError:
    shown = json.dumps(value)
    return ConfigError(f"{key} is {shown if len(shown) <= 60 else shown[:57] + '…'}: {right}")
