"""The choice of requests that meet an injected failure: the same ones for the same seed."""

import hashlib
from collections.abc import Sequence
from typing import Generic, TypeVar

F = TypeVar("F")


class EngineKilled(Exception):
    """An engine crashed because it was told to."""


class Injections(Generic[F]):
    """Draws for each request in the order of arrival, and kills engines."""

    def __init__(self, faults: Sequence[tuple[F, float]], seed: int) -> None:
        self._faults, self._seed = faults, seed
        self._number = 0
        self._shall_die = False

    def next(self) -> F | None:
        """Return the fault of the next request: the first that is drawn, by its own rate."""
        number, self._number = self._number, self._number + 1
        for index, (fault, rate) in enumerate(self._faults):
            digest = hashlib.blake2b(f"{self._seed}:{number}:{index}".encode(), digest_size=8).digest()
            if int.from_bytes(digest, "big") < rate * 2**64:
                return fault
        return None

    def kill(self) -> None:
        """Let an engine crash in its next step."""
        self._shall_die = True

    def check(self) -> None:
        """An engine is about to do a step; raises EngineKilled if it is to crash."""
        if self._shall_die:
            self._shall_die = False
            raise EngineKilled("its end was injected")
