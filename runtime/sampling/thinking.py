"""A bound on the tokens that one request spends on reasoning, from token to token.

Law: which token is forced depends on the request's own tokens alone, so chunks, preemptions, prefix hits and
what else is in the batch change nothing.
"""

from collections.abc import Sequence


class ThinkingBudget:
    """Where a request stands in its reasoning, which begins with the token `begin` and ends with `end`.

    As in vLLM, the prompt's last mark says whether it opens reasoning, and what stands behind that mark
    counts. Each section of the answer has the whole budget; a mark that begins reasoning within one is a
    token of it like any other.
    """

    __slots__ = ("_begin", "_budget", "_end", "_spent")

    def __init__(
        self, num_tokens: int, begin: int, end: int, prompt: Sequence[int], outputs: Sequence[int]
    ) -> None:
        self._budget, self._begin, self._end = num_tokens, begin, end
        self._spent: int | None = None
        """The tokens of the section that is open; None where none is."""
        for num_behind, token in enumerate(reversed(prompt)):
            if token in (begin, end):
                self._spent = num_behind if token == begin else None
                break
        for token in outputs:
            self.add(token)

    def add(self, token: int) -> None:
        """The request has been given this token."""
        if token == self._end:
            self._spent = None
        elif self._spent is not None:
            self._spent += 1
        elif token == self._begin:
            self._spent = 0

    @property
    def forced(self) -> int | None:
        """The token that must come next: the end of the reasoning, once the budget is spent."""
        return self._end if self._spent is not None and self._spent >= self._budget else None
