"""Sampling defaults that a model's makers recommend."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Sampling parameters of requests that leave them out, by field name."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
    """Most tokens of an answer; None: up to the end of the context."""


NEUTRAL = SamplingDefaults()


def differing(defaults: SamplingDefaults) -> tuple[str, ...]:
    """Return a line for people if these defaults are not neutral."""
    pairs = [(name, getattr(defaults, name)) for name in SamplingDefaults.__slots__]
    told = [f"{name} {value}" for name, value in pairs if value != getattr(NEUTRAL, name)]
    if not told:
        return ()
    return (f"by default {', '.join(told)}, as its generation_config.json says (--generation-config)",)
