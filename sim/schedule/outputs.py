"""The recorded outputs of a trace as a TokenSource."""

from collections.abc import Mapping, Sequence

from sim.named_tokens import NamedTokens

FALLBACK_TOKEN = 3
"""What a request samples whose recorded outputs have run out."""


def recorded_outputs(outputs: Mapping[str, Sequence[int]]) -> NamedTokens:
    """Each request samples its own outputs; the scheduler sees by itself where it ends."""
    return NamedTokens(outputs.__getitem__, FALLBACK_TOKEN, is_end=False)
