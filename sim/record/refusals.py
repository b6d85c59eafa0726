"""How many requests were refused, and why: at the door or by the policy."""

import re
from dataclasses import dataclass, field

MOST_REASONS = 20
"""Reasons that are told apart; the others are counted together."""
OTHERS = "for other reasons"
NUMBERS = re.compile(r"\d[\d,.]*")


def kind_of(reason: str) -> str:
    """The reason without its numbers."""
    return NUMBERS.sub("#", reason)


@dataclass(slots=True)
class Refusals:
    """`counts` by reason; reasons that differ by their numbers alone are one, in the words of the first."""

    counts: dict[str, int] = field(default_factory=dict)
    _first: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str) -> None:
        """One more."""
        kind = kind_of(reason)
        if kind not in self._first and len(self._first) >= MOST_REASONS:
            reason = kind = OTHERS
        reason = self._first.setdefault(kind, reason)
        self.counts[reason] = self.counts.get(reason, 0) + 1

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.counts.values())
