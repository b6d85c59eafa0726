"""Prompts of given lengths, with shared text where a trace has shared blocks.

A prompt is a sequence of units: token ids, or words. Units of a named block depend only on a salt and the
block's name, so that prompts with the same names share text, in whatever order they are made.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from sundog.runtime.load.rows import Row

T = TypeVar("T", int, str)

WORDS = tuple(
    "time year people way day man thing woman life child world school state family student group country"
    " problem hand part place case week company system program question work government number night point"
    " home water room mother area money story fact month lot right study book eye job word business issue"
    " side kind head house service friend father power hour game line end member law car city name team"
    " minute idea kid body information back parent face others level office door health person art war"
    " history party result change morning reason research girl guy moment air teacher force education".split()
)
"""Words that are one token each, with the space before, in most vocabularies."""


@dataclass(frozen=True, slots=True)
class Units:
    """Units of prompts: token ids, or words of `tokens_each` tokens on average.

    A server adds `fixed_tokens` to each prompt, such as those of its chat template.
    """

    ids: Sequence[int] = ()
    words: Sequence[str] = ()
    tokens_each: float = 1.0
    fixed_tokens: int = 0

    def count(self, num_tokens: int) -> int:
        """Return the number of units in a prompt of this many tokens; at least 1."""
        return max(1, round((num_tokens - self.fixed_tokens) / self.tokens_each))


class PromptMaker:
    """Maker of each row's prompt; the same salt gives the same prompts."""

    def __init__(self, units: Units, salt: str) -> None:
        self._units, self._salt = units, salt

    def of(self, row: Row) -> str | list[int]:
        """Return the prompt of a row: a text, or token ids. O(its tokens)."""
        count = self._units.count(row.num_prompt_tokens)
        if self._units.ids:
            return self._drawn(row, count, self._units.ids)
        return " ".join(self._drawn(row, count, self._units.words))

    def _drawn(self, row: Row, count: int, bank: Sequence[T]) -> list[T]:
        drawn: list[T] = []
        if row.hash_ids is not None:
            size = max(1, round(row.hash_block_tokens / self._units.tokens_each))
            for name in row.hash_ids[: count // size]:
                drawn += random.Random(f"{self._salt}:{name}").choices(bank, k=size)
        # What has no name of its own, the part of a block at the end among it, repeats nowhere.
        own = random.Random(f"{self._salt}:{row.request_id}")
        return drawn + own.choices(bank, k=count - len(drawn))
