"""Random numbers that follow from a seed and a key, however often and in which order they are drawn."""

import hashlib
from collections.abc import Sequence


def drawn(seed: int, names: Sequence[str | int]) -> float:
    """A number from 0 to 1, 1 excluded."""
    digest = hashlib.blake2b(repr((seed, list(names))).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2.0**53


def is_lost(seed: int, request_id: str, now_s: float, rates: Sequence[float]) -> bool:
    """Draw whether a transfer that is done now gets lost, at any of these rates."""
    key = ["lost", request_id, f"{now_s}"]
    return any(drawn(seed, [*key, index]) < rate for index, rate in enumerate(rates))
