"""State of a request in its grammar, token by token.

Law: a failure ends only its own request. The reason is kept in `failed`, in words for the client.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sundog.actors.core.params.sampling import Constraint
from sundog.actors.front.foreign import ForeignFailure, contained
from sundog.runtime.structured.grammars import Grammars
from sundog.runtime.structured.limits import one_line
from sundog.runtime.structured.trial import GrammarError

if TYPE_CHECKING:
    from llguidance import LLMatcher

BROKEN = "its answer cannot follow its grammar"


class Matcher:
    """Possible next tokens of one request; `outputs` were generated before it was preempted.

    `ends` are the tokens that may end a complete answer. Used by one thread at a time; the first use makes
    the library's own matcher, so that this happens where the model computes. Up to the token `after`, if
    there is one, everything is allowed.
    """

    def __init__(
        self,
        grammars: Grammars,
        constraint: Constraint,
        ends: Sequence[int],
        outputs: Sequence[int],
        after: int | None = None,
    ) -> None:
        self._after = after
        self._grammars = grammars
        self._constraint = constraint
        self._ends = tuple(ends)
        self._outputs = tuple(outputs)
        self._inner: LLMatcher | None = None
        self.failed: str | None = None
        self.is_complete = False
        """Whether only an end token may come next."""

    @property
    def num_words(self) -> int:
        """Length of its mask; 0 if it has none."""
        return 0 if self._open() is None else self._grammars.num_words

    def fill(self, word_W: NDArray[np.int32]) -> None:
        """Set the bits of the tokens that may come next: none if it has failed. O(grammar): 5 to 1,000 µs."""
        inner = self._open()
        word_W[:] = 0
        if inner is None:
            return
        if self._after is not None:
            word_W[:] = -1
            return
        if not self.is_complete:
            try:
                contained(partial(inner.unsafe_compute_mask_ptr, word_W.ctypes.data, word_W.nbytes))
            except (ValueError, ForeignFailure) as error:
                self._fail(str(error))
            if self._is_broken(inner):
                word_W[:] = 0
                return
            if not inner.is_accepting():
                return
        end_W = np.zeros_like(word_W)
        for token in self._ends:
            if token < 32 * len(word_W):
                end_W[token // 32] |= np.int32(_BITS[token % 32])
        self.is_complete = not (word_W & ~end_W).any()
        word_W |= end_W

    def accept(self, token: int) -> None:
        """Record a token of the request. 2 to 20 µs."""
        inner = self._open()
        if inner is None or self.is_complete:
            return
        if self._after is not None:
            self._after = None if token == self._after else self._after
            return
        if token in self._ends and inner.is_accepting():
            self.is_complete = True
            return
        try:
            contained(partial(inner.consume_token, token))
        except ForeignFailure as error:
            self._fail(str(error))
        if not self._is_broken(inner):
            self.is_complete = inner.is_stopped()

    def _open(self) -> "LLMatcher | None":
        if self._inner is None and self.failed is None:
            try:
                self._inner = contained(partial(self._grammars.matcher, self._constraint))
            except (GrammarError, ForeignFailure) as error:
                self._fail(str(error))
            else:
                for token in self._outputs:
                    self.accept(token)
        return None if self.failed is not None else self._inner

    def _is_broken(self, inner: "LLMatcher") -> bool:
        if self.failed is None and inner.is_error():
            self._fail(inner.get_error())
        return self.failed is not None

    def _fail(self, reason: str) -> None:
        self.failed = f"{BROKEN}: {one_line(reason)}"
        self._inner = None


_BITS = np.array([1 << bit for bit in range(32)], np.uint32).astype(np.int32)
