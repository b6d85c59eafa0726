"""`--pooler-config`: how a model's hidden states become vectors, under vLLM's names."""

import json
from dataclasses import dataclass
from enum import Enum


class PoolingType(Enum):
    """Hidden states of a prompt that its vector is made of: the first, the last, or the mean of all."""

    CLS = "cls"
    MEAN = "mean"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class PoolerConfig:
    """Settings that override those of the model's files. `dimensions` shortens every vector."""

    pooling: PoolingType | None = None
    use_activation: bool | None = None
    dimensions: int | None = None


def parse_pooler_config(text: str) -> PoolerConfig:
    """Parse the settings in a JSON object; raises ValueError with the reason."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"give a JSON object: {error}") from None
    if not isinstance(given, dict):
        raise ValueError('give a JSON object like {"pooling_type": "MEAN"}')
    known = {name: given.pop(name) for name in tuple(given) if name in CHECKS and given[name] is not None}
    if "normalize" in given:
        raise ValueError("normalize was renamed: give use_activation")
    if given:
        raise ValueError(f"{next(iter(given))} is not supported: give {', '.join(CHECKS)}")
    for name, value in known.items():
        check, allowed = CHECKS[name]
        if not check(value):
            raise ValueError(f"{name} is {json.dumps(value)}: give {allowed}")
    pooling = known.get("seq_pooling_type", known.get("pooling_type"))
    return PoolerConfig(
        None if pooling is None else PoolingType[pooling],
        known.get("use_activation"),
        known.get("dimensions"),
    )


def _is_pooling_type(value: object) -> bool:
    return isinstance(value, str) and value in PoolingType.__members__


POOLING_TYPES = (_is_pooling_type, ", ".join(PoolingType.__members__))
CHECKS = {
    "pooling_type": POOLING_TYPES,
    "seq_pooling_type": POOLING_TYPES,
    "use_activation": (lambda value: isinstance(value, bool), "true or false"),
    "dimensions": (lambda value: type(value) is int and value >= 1, "a whole number of at least 1"),
}
