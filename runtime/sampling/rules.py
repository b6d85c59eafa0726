"""What a request's parameters do to single logits: its bans, its biases, its penalties, from step to step."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from actors.core.params.sampling import Sampling
from runtime.sampling.edits import NO_COUNTS, NO_IDS, Edit
from runtime.sampling.history import BadWords, TokenCounts
from runtime.sampling.thinking import ThinkingBudget

MOST_TOKEN_ID = 2**31 - 1


class Rules:
    """The rules of one request, from the tokens it has when it is admitted; `add` each further one.

    Raises ValueError for numbers that cannot be used.
    """

    __slots__ = (
        "_allowed",
        "_bad_words",
        "_bias",
        "_biased",
        "_counts",
        "_ends",
        "_penalties",
        "_thinking",
        "change_logits",
    )

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
        """The request has been given this token."""
        if self._counts is not None:
            self._counts.add(token)
        if self._bad_words is not None:
            self._bad_words.add(token)
        if self._thinking is not None:
            self._thinking.add(token)

    def edit(self, is_early: bool) -> Edit | None:
        """What changes for the next token, one of the first `min_tokens` if it `is_early`; None: nothing."""
        if self._thinking is not None and (forced := self._thinking.forced) is not None:
            return Edit(forced=forced)
        banned = NO_IDS if self._bad_words is None else _ids(self._bad_words.banned())
        if is_early:
            banned = np.concatenate((banned, self._ends))
        counts = self._counts
        seen, count = (NO_IDS, NO_COUNTS) if counts is None else (counts.token_K, counts.count_K)
        if self._allowed is None and not (len(banned) or len(self._biased) or len(seen)):
            return None
        return Edit(self._allowed, banned, self._biased, self._bias, seen, count, *self._penalties)


def _thinking(sampling: Sampling, prompt: Sequence[int], outputs: Sequence[int]) -> ThinkingBudget | None:
    """Where the request stands in its reasoning, if a budget bounds it."""
    budget = sampling.thinking_token_budget
    if budget is None:
        return None
    if sampling.thought is None:
        raise ValueError("thinking_token_budget needs the tokens that begin and end reasoning")
    return ThinkingBudget(budget, *sampling.thought, prompt, outputs)


def _penalties(sampling: Sampling) -> tuple[float, float, float]:
    """Repetition, frequency, presence, as a float32 holds them."""
    numbers = (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty)
    with np.errstate(over="ignore", under="ignore"):
        repetition, frequency, presence = np.array(numbers, np.float64).astype(np.float32).tolist()
    return repetition, frequency, presence


def _ids(tokens: Iterable[int]) -> NDArray[np.int64]:
    """Tokens as a column, without those that no vocabulary has."""
    return np.array([token for token in tokens if 0 <= token <= MOST_TOKEN_ID], np.int64)
