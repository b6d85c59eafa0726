"""Random numbers that depend only on a seed and a key, not on the order of calls."""

import hashlib
from collections.abc import Sequence


def drawn(seed: int, names: Sequence[str | int]) -> float:
    """Return a number in [0, 1)."""
    digest = hashlib.blake2b(repr((seed, list(names))).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2.0**53


def is_lost(seed: int, request_id: str, now_s: float, rates: Sequence[float]) -> bool:
    """Return whether a transfer at this time is lost; `rates` are the loss rates of its parts."""
    key = ["lost", request_id, f"{now_s}"]
    return any(drawn(seed, [*key, index]) < rate for index, rate in enumerate(rates))
