"""Drafts kept between steps, and the tokens that they are made from.

A draft is verified by sampling at its position: the token that the model samples there, with the random
number that decides that token without drafts, either is the draft or replaces it. So a request gets the same
tokens with drafts and without, greedy or not: this is rejection sampling of one certain guess (Leviathan et
al., "Fast Inference from Transformers via Speculative Decoding", 2023, algorithm 1, with q = 1), where the
draft is accepted with its own probability and its replacement is sampled from the rest.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np

from sundog.actors.core.params.sampling import Sampling, may_draft
from sundog.runtime.sampling.sampler import Sampled
from sundog.runtime.step.step import Ints, Part, Step


def accepted_rows(step: Step, sampled: Sampled) -> list[int]:
    """Return the sampling rows whose tokens count: those of each request up to its first rejected draft."""
    kept, goes_on, last = [], False, None
    for row, name in enumerate(step.request_ids):
        if name != last:
            goes_on, last = True, name
        elif goes_on:
            draft = int(step.token_T[step.sample_rows_R[row]])
            goes_on = row - 1 not in sampled.failed and sampled.tokens[row - 1] == draft
        if goes_on:
            kept.append(row)
    return kept


class Drafts:
    """All tokens of every running request, and its drafts. Memory: 8 bytes a token."""

    def __init__(self) -> None:
        self._tokens: dict[str, Ints] = {}
        self._length: dict[str, int] = {}
        self._kept: dict[str, tuple[int, ...]] = {}
        self._drafted: set[str] = set()

    def admit(self, request_id: str, token_ids: Sequence[int], sampling: Sampling) -> None:
        """Add a request that begins to run, or runs again, with these tokens."""
        self._length[request_id] = len(token_ids)
        self._tokens[request_id] = np.array(token_ids, np.int64)
        if may_draft(sampling):
            self._drafted.add(request_id)

    def forget(self, request_id: str) -> None:
        """Remove a request that no longer runs."""
        del self._tokens[request_id], self._length[request_id]
        self._kept.pop(request_id, None)
        self._drafted.discard(request_id)

    def extend(self, request_ids: Sequence[str], tokens: Sequence[int]) -> None:
        """Append one new token to each of these requests."""
        for name, token in zip(request_ids, tokens, strict=True):
            length, buffer = self._length[name], self._tokens[name]
            if length == len(buffer):
                buffer = self._tokens[name] = np.resize(buffer, 2 * length + 16)
            buffer[length] = token
            self._length[name] = length + 1

    def tokens(self, request_id: str) -> Ints:
        """Return all tokens of the request, its prompt's first."""
        return self._tokens[request_id][: self._length[request_id]]

    def wanting(self, request_ids: Iterable[str]) -> list[str]:
        """Return the requests among these that may have drafts, each once."""
        return [name for name in dict.fromkeys(request_ids) if name in self._drafted]

    def keep(self, request_id: str, drafts: Sequence[int]) -> None:
        """Store drafts of the request's next tokens."""
        self._kept[request_id] = tuple(drafts)

    def _last(self, request_id: str) -> int:
        return int(self._tokens[request_id][self._length[request_id] - 1])

    def _take(self, request_id: str, num_drafts: int) -> tuple[int, ...]:
        drafts = self._kept.pop(request_id, ())
        if len(drafts) < num_drafts:
            raise ValueError(
                f"request {request_id} has {len(drafts)} drafts, the batch verifies {num_drafts}"
            )
        return drafts[:num_drafts]

    def parts(
        self, verified: Sequence[tuple[str, int]], rows: Mapping[str, int], num_computed: Ints
    ) -> Iterator[Part]:
        """Yield the parts of requests whose drafts are verified: their last token and these drafts."""
        for num_drafts, pairs in groupby(sorted(verified, key=_count), key=_count):
            names = tuple(name for name, _ in pairs)
            row_N = np.array([rows[name] for name in names], np.int64)
            tokens = [token for name in names for token in (self._last(name), *self._take(name, num_drafts))]
            own = np.array(tokens, np.int64)
            yield Part(
                names,
                row_N,
                first_N=num_computed[row_N],
                num_queries=1 + num_drafts,
                token_T=own,
                num_samples=1 + num_drafts,
            )

    def drop(self, request_ids: Iterable[str]) -> None:
        """Remove the drafts of requests that compute their next token without."""
        for name in request_ids:
            self._kept.pop(name, None)


def _count(pair: tuple[str, int]) -> int:
    return pair[1]
