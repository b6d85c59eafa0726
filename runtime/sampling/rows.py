"""Sampling parameters of all requests and their state, one row each.

Randomness has no state: the number that decides a token is a hash of the request's seed and the token's
position. So a seed gives the same stream whatever else is in the batch, and after a preemption. Penalties and
bad words depend on earlier tokens; that state is rebuilt from the request's tokens at each admission, and
grows by one token a step.

Shapes: R requests that sample in this step.
"""

import hashlib
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sundog.actors.core.params.sampling import Sampling
from sundog.runtime.sampling.choices import Choices, Likely
from sundog.runtime.sampling.rules import Rules
from sundog.runtime.structured.grammars import Grammars
from sundog.runtime.structured.matcher import Matcher

GREEDY_BELOW = 1e-5
MOST_TEMPERATURE = float(np.finfo(np.float32).max)
MOST_INTEGER = int(np.iinfo(np.int64).max)
PLAIN = Sampling(temperature=0.0)
COLUMNS = ("_temperature", "_top_k", "_top_p", "_min_p", "_key", "_min_position")


class SamplingRows:
    """Sampling parameters of all requests as columns, and rules of the few that have some.

    A request with invalid parameters fails alone: its row has the reason, and takes the likeliest token until
    it is removed.
    """

    def __init__(
        self, seed: int, eos_token_ids: tuple[int, ...], num_rows: int, grammars: Grammars | None = None
    ) -> None:
        self._seed = seed
        self._eos_token_ids = eos_token_ids
        self._grammars = grammars
        self._temperature = np.zeros(num_rows, np.float32)
        self._top_k = np.zeros(num_rows, np.int64)
        self._top_p = np.ones(num_rows, np.float32)
        self._min_p = np.zeros(num_rows, np.float32)
        self._key = np.zeros(num_rows, np.uint64)
        self._min_position = np.zeros(num_rows, np.int64)
        self._rules: dict[int, Rules] = {}
        self._logprobs: dict[int, Likely] = {}
        self._matchers: dict[int, Matcher] = {}
        self._failed: dict[int, str] = {}

    @property
    def looks_back(self) -> bool:
        """Whether some row's sampling depends on its earlier tokens."""
        return bool(self._rules or self._matchers)

    def grow(self, num_rows: int) -> None:
        for name in COLUMNS:
            setattr(self, name, np.resize(getattr(self, name), num_rows))

    def set(
        self,
        row: int,
        request_id: str,
        num_prompt_tokens: int,
        sampling: Sampling,
        token_ids: Sequence[int] = (),
    ) -> None:
        """Set the sampling of this request, now in `row`; `token_ids` are all its tokens."""
        self._failed.pop(row, None)
        try:
            self._read(row, request_id, num_prompt_tokens, sampling, token_ids)
        except (ArithmeticError, TypeError, ValueError) as error:
            self._failed[row] = f"its sampling parameters cannot be used: {error}"
            self._read(row, request_id, num_prompt_tokens, PLAIN, token_ids)

    def _read(
        self, row: int, request_id: str, num_prompt_tokens: int, sampling: Sampling, token_ids: Sequence[int]
    ) -> None:
        """Read the parameters. Clamping here keeps their meaning: larger numbers request the same."""
        if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
            raise ValueError(f"temperature is {sampling.temperature}")
        for name in ("top_p", "min_p"):
            if math.isnan(getattr(sampling, name)):
                raise ValueError(f"{name} is nan")
        greedy = sampling.temperature < GREEDY_BELOW
        self._temperature[row] = 0.0 if greedy else min(sampling.temperature, MOST_TEMPERATURE)
        self._top_k[row] = 0 if greedy else max(0, min(sampling.top_k or 0, MOST_INTEGER))
        self._top_p[row] = 1.0 if greedy else max(0.0, min(sampling.top_p, 1.0))
        self._min_p[row] = 0.0 if greedy else max(0.0, min(sampling.min_p, 1.0))
        own = f"seed {sampling.seed}"
        name = f"engine {self._seed} {request_id}" if sampling.seed is None else own
        self._key[row] = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())
        self._min_position[row] = min(num_prompt_tokens + sampling.min_tokens, MOST_INTEGER)
        self._rules.pop(row, None)
        self._logprobs.pop(row, None)
        if sampling.logprobs is not None:
            self._logprobs[row] = sampling.logprob_token_ids or sampling.logprobs
        rules = Rules(sampling, self._eos_token_ids, token_ids, num_prompt_tokens)
        if rules.change_logits:
            self._rules[row] = rules
        self._matchers.pop(row, None)
        if sampling.constraint is not None:
            if self._grammars is None:
                raise ValueError("this engine does not support grammars")
            ends = (*self._eos_token_ids, *sampling.stop_token_ids)
            outputs = token_ids[num_prompt_tokens:]
            after = sampling.constraint_after
            self._matchers[row] = Matcher(
                self._grammars, sampling.constraint, ends=ends, outputs=outputs, after=after
            )

    def advance(self, rows: Sequence[int], tokens: Sequence[int]) -> None:
        """Record new tokens of these rows."""
        if self._rules:
            for row, token in zip(rows, tokens, strict=True):
                if row in self._rules:
                    self._rules[row].add(token)

    def forget(self, row: int) -> None:
        """Clear this row."""
        for notes in (self._rules, self._logprobs, self._matchers, self._failed):
            notes.pop(row, None)

    def take(self, rows_R: NDArray[np.int64], position_R: NDArray[np.int64]) -> Choices | None:
        """Return the parameters of these requests for their tokens at `position_R`; None if all are greedy
        without rules.
        """
        temperature_R = self._temperature[rows_R]
        rules, logprobs, failed = self._rules, self._logprobs, self._failed
        matchers = self._matchers
        if not (rules or logprobs or matchers or failed or temperature_R.any()):
            return None
        numbered = list(enumerate(rows_R.tolist()))
        early_R = position_R < self._min_position[rows_R]
        edits = [(r, rules[row].edit(bool(early_R[r]))) for r, row in numbered if row in rules]
        choices = Choices(
            temperature_R,
            self._top_k[rows_R],
            top_p_R=self._top_p[rows_R],
            min_p_R=self._min_p[rows_R],
            uniform_R=uniforms(self._key[rows_R], position_R),
            edits=tuple((r, edit) for r, edit in edits if edit is not None),
            logprobs=tuple((r, logprobs[row]) for r, row in numbered if row in logprobs),
            matchers=tuple((r, matchers[row]) for r, row in numbered if row in matchers),
            failed=tuple((r, failed[row]) for r, row in numbered if row in failed),
        )
        has_some = choices.edits or choices.logprobs or choices.matchers or choices.failed
        return choices if has_some or temperature_R.any() else None


def uniforms(key_R: NDArray[np.uint64], position_R: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return numbers in [0, 1): number `position` of the SplitMix64 stream that starts at `key`.

    SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    x_R = key_R + (position_R.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x_R = (x_R ^ (x_R >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x_R = (x_R ^ (x_R >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x_R ^= x_R >> np.uint64(31)
    u_R: NDArray[np.float64] = (x_R >> np.uint64(11)) * 2.0**-53
    return u_R
