"""What a request asks of a model that makes vectors instead of text."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pooling:
    """The vector of a prompt: its first `dimensions` numbers (None: all), scaled to length 1 if `normalise`.

    `normalise` None does what the model's own files say.
    """

    dimensions: int | None = None
    normalise: bool | None = None
