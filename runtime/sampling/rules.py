"""Rules of a request that change single logits from step to step: bans, biases, penalties and budgets.

The row owns the history of a request. It grows by one token a step, and is rebuilt when the request is
admitted again. Memory: 20 bytes and one dictionary entry for each different token.

Law: a token forced by a reasoning budget depends on the request's own tokens alone, so chunks, preemptions,
prefix hits and the rest of the batch change nothing.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from sundog.actors.core.params.sampling import Sampling
from sundog.runtime.sampling.edits import NO_COUNTS, NO_IDS, Edit


class ThinkingBudget:
    """State of a request's reasoning, between the tokens `begin` and `end`.

    As in vLLM, the prompt's last mark decides whether reasoning is open, and tokens after it count. Each
    section of the answer has the whole budget; an opening mark within one counts like any other token.
    """

    def __init__(
        self, num_tokens: int, begin: int, end: int, prompt: Sequence[int], outputs: Sequence[int]
    ) -> None:
        self._budget, self._begin, self._end = num_tokens, begin, end
        self._spent: int | None = None
        """Tokens of the open section; None outside of reasoning."""
        for num_behind, token in enumerate(reversed(prompt)):
            if token in (begin, end):
                self._spent = num_behind if token == begin else None
                break
        for token in outputs:
            self.add(token)

    def add(self, token: int) -> None:
        """Record a token of the request."""
        if token == self._end:
            self._spent = None
        elif self._spent is not None:
            self._spent += 1
        elif token == self._begin:
            self._spent = 0

    @property
    def forced(self) -> int | None:
        """Token that must come next: the end of the reasoning, once the budget is spent."""
        return self._end if self._spent is not None and self._spent >= self._budget else None


Ints = NDArray[np.int64]


class TokenCounts:
    """Count of each token so far; `num` different ones, in order of appearance.

    Prompt tokens, if given, are included with a count of 0.
    """

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
    """Token sequences whose last token is banned right after the others.

    As in vLLM, the prompt's tokens do not begin one. O(different lengths) a step.
    """

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
        """Return the tokens that may not come next."""
        found, said = list(self._always), self._said
        for length in self._lengths:
            if length <= len(said):
                found += self._then.get(tuple(said[-length:]), ())
        return found


MOST_TOKEN_ID = 2**31 - 1


class Rules:
    """Rules of one request, built from its tokens at admission; `add` each further one.

    Raises ValueError for unusable numbers.
    """

    def __init__(
        self,
        sampling: Sampling,
        eos_token_ids: tuple[int, ...],
        token_ids: Sequence[int],
        num_prompt_tokens: int,
    ) -> None:
        allowed, bias = sampling.allowed_token_ids, dict(sampling.logit_bias)
        self._allowed = None if allowed is None else _ids(set(allowed))
        self._biased = _ids(bias)
        self._bias = np.array([bias[token] for token in self._biased.tolist()], np.float32)
        self._penalties = _penalties(sampling)
        if not (self._penalties[0] > 0 and all(map(math.isfinite, (*self._penalties, *bias.values())))):
            raise ValueError("a penalty or a bias is out of bounds")
        self._ends = _ids((*eos_token_ids, *sampling.stop_token_ids)) if sampling.min_tokens else NO_IDS
        prompt, outputs = token_ids[:num_prompt_tokens], token_ids[num_prompt_tokens:]
        repeats, weighs = self._penalties[0] != 1, self._penalties != (1.0, 0.0, 0.0)
        self._counts = TokenCounts(prompt if repeats else (), outputs) if weighs else None
        words = sampling.bad_words_token_ids
        self._bad_words = BadWords(words, outputs) if words else None
        self._thinking = _thinking(sampling, prompt, outputs)
        self.change_logits = bool(
            weighs
            or words
            or self._allowed is not None
            or len(self._biased)
            or len(self._ends)
            or self._thinking is not None
        )
        """Whether there is any rule."""

    def add(self, token: int) -> None:
        """Record a token of the request."""
        if self._counts is not None:
            self._counts.add(token)
        if self._bad_words is not None:
            self._bad_words.add(token)
        if self._thinking is not None:
            self._thinking.add(token)

    def edit(self, is_early: bool) -> Edit | None:
        """Return the edit for the next token, one of the first `min_tokens` if it `is_early`, or None."""
        if self._thinking is not None and (forced := self._thinking.forced) is not None:
            return Edit(forced=forced)
        banned = NO_IDS if self._bad_words is None else _ids(self._bad_words.banned())
        if is_early:
            banned = np.concatenate((banned, self._ends))
        counts = self._counts
        seen, count = (NO_IDS, NO_COUNTS) if counts is None else (counts.token_K, counts.count_K)
        if self._allowed is None and not (len(banned) or len(self._biased) or len(seen)):
            return None
        repetition, frequency, presence = self._penalties
        return Edit(
            allowed=self._allowed,
            banned=banned,
            biased=self._biased,
            bias=self._bias,
            seen=seen,
            count=count,
            repetition=repetition,
            frequency=frequency,
            presence=presence,
        )


def _thinking(sampling: Sampling, prompt: Sequence[int], outputs: Sequence[int]) -> ThinkingBudget | None:
    budget = sampling.thinking_token_budget
    if budget is None:
        return None
    if sampling.thought is None:
        raise ValueError("thinking_token_budget needs the tokens that begin and end reasoning")
    return ThinkingBudget(budget, *sampling.thought, prompt, outputs)


def _penalties(sampling: Sampling) -> tuple[float, float, float]:
    """Return repetition, frequency and presence penalties, rounded to float32."""
    numbers = (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty)
    with np.errstate(over="ignore", under="ignore"):
        repetition, frequency, presence = np.array(numbers, np.float64).astype(np.float32).tolist()
    return repetition, frequency, presence


def _ids(tokens: Iterable[int]) -> NDArray[np.int64]:
    return np.array([token for token in tokens if 0 <= token <= MOST_TOKEN_ID], np.int64)
