"""Answers that say the same again and again, as vLLM's `repetition_detection` looks for them."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Repetition:
    """An answer ends when its last tokens are `min_count` times the same `min_size` to `max_size` tokens."""

    min_size: int
    max_size: int
    min_count: int

    @property
    def most_tokens(self) -> int:
        """How many of the last tokens are looked at."""
        return self.max_size * self.min_count

    def ends(self, tokens: Sequence[int]) -> bool:
        """Whether these tokens end so. O(sizes), and O(`most_tokens`) for each that may be one."""
        for size in range(self.min_size, self.max_size + 1):
            length = size * self.min_count
            if length > len(tokens):
                return False
            if tokens[-length:-size] == tokens[-length + size :]:
                return True
        return False
