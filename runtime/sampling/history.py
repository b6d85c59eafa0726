"""What a request has said so far, as far as its next token depends on it. One owner: its row.

It grows by one token a step, and is made anew when a request is admitted again. Memory: 20 bytes and one
dictionary entry for each different token.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class TokenCounts:
    """How often each token has been said; `num` different ones, in the order in which they came.

    Tokens of the prompt are in it with a count of 0, if they are given.
    """

    __slots__ = ("_count", "_index", "_token", "num")

    def __init__(self, prompt: Sequence[int], outputs: Sequence[int]) -> None:
        known = dict.fromkeys(prompt)
        self._index = {token: index for index, token in enumerate(known)}
        self.num = len(known)
        self._token = np.fromiter(known, np.int64, self.num)
        self._count = np.zeros(self.num, np.int32)
        for token in outputs:
            self.add(token)

    @property
    def token_K(self) -> Ints:
        return self._token[: self.num]

    @property
    def count_K(self) -> NDArray[np.int32]:
        return self._count[: self.num]

    def add(self, token: int) -> None:
        index = self._index.setdefault(token, self.num)
        if index == self.num:
            if index == len(self._token):
                self._token = np.resize(self._token, 2 * index + 8)
                self._count = np.resize(self._count, 2 * index + 8)
            self._token[index], self._count[index] = token, 0
            self.num += 1
        self._count[index] += 1


class BadWords:
    """Sequences of tokens of which the last is banned once the others have just been said.

    As in vLLM, the prompt's tokens do not begin one. O(different lengths) a step.
    """

    __slots__ = ("_always", "_lengths", "_said", "_then")

    def __init__(self, words: Sequence[tuple[int, ...]], outputs: Sequence[int]) -> None:
        self._then: dict[tuple[int, ...], list[int]] = {}
        for word in words:
            self._then.setdefault(word[:-1], []).append(word[-1])
        self._always = self._then.pop((), [])
        self._lengths = sorted({len(prefix) for prefix in self._then})
        self._said = list(outputs)[-self._most :]

    @property
    def _most(self) -> int:
        return self._lengths[-1] if self._lengths else 1

    def add(self, token: int) -> None:
        self._said.append(token)
        del self._said[: -self._most]

    def banned(self) -> list[int]:
        """What may not come next."""
        found, said = list(self._always), self._said
        for length in self._lengths:
            if length <= len(said):
                found += self._then.get(tuple(said[-length:]), ())
        return found
