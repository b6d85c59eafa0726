"""Sampling parameters that a model's makers recommend, for requests that do not give them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Sampling parameters of requests that leave them out, under the names of their fields."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
    """The most tokens of an answer; None: to the end of the context."""


NEUTRAL = SamplingDefaults()


def differing(defaults: SamplingDefaults) -> tuple[str, ...]:
    """A line for people, if these are not the neutral ones."""
    pairs = [(name, getattr(defaults, name)) for name in SamplingDefaults.__slots__]
    told = [f"{name} {value}" for name, value in pairs if value != getattr(NEUTRAL, name)]
    if not told:
        return ()
    return (f"by default {', '.join(told)}, as its generation_config.json says (--generation-config)",)
