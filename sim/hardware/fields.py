"""Fields of a config.json, checked as they are read: a refusal names the file and the field."""

import json
from dataclasses import dataclass
from typing import Any

from actors.core.config import ConfigError

MOST = 2**31
MOST_LAYERS = 2000


def config_of(text: str, source: str) -> dict[str, Any]:
    """The object in the text of a config.json."""
    try:
        config = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"{source}: not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{source}: a config.json holds one object, not {type(config).__name__}")
    return config


@dataclass(frozen=True, slots=True)
class Fields:
    """A config with the defaults of its family under it; null is the same as missing."""

    values: dict[str, Any]
    source: str

    def get(self, key: str) -> object:
        """As it stands there; None where it is missing."""
        value: object = self.values.get(key)
        return value

    def count(self, key: str, default: int | None = None, least: int = 1, most: int = MOST) -> int:
        """A whole number."""
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise ConfigError(f"{self.source}: {key} is missing")
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ConfigError(
                f"{self.source}: {key} is {_short(value)}: it must be a whole number"
                f" of at least {least}" + (f" and at most {most:,}" if _above(value, most) else "")
            )
        return value

    def maybe(self, key: str) -> int | None:
        """A whole number of at least 1, or nothing."""
        return None if self.values.get(key) is None else self.count(key)

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ConfigError(f"{self.source}: {key} is {_short(value)}: it must be true or false")
        return value

    def words(self, key: str, num: int, known: tuple[str, ...]) -> list[str] | None:
        """A list of `num` of the known words, or nothing."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != num:
            raise ConfigError(f"{self.source}: {key} must be a list of {num} entries, one per layer")
        for word in value:
            if word not in known:
                raise ConfigError(
                    f"{self.source}: {key} has {_short(word)}, which the cost model does not know:"
                    f" known are {', '.join(known)}"
                )
        return value

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return self.count("num_hidden_layers", most=MOST_LAYERS)


def _above(value: object, most: int) -> bool:
    return isinstance(value, int) and value > most


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
