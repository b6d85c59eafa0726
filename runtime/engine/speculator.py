"""Speculators: they draft tokens after each step, by prompt lookup or with a draft model.

A draft model computes every token that the model computes, in the same blocks of a cache of its own. It can
therefore draft for a request whose prefix was computed by another request. Drafts change the number of
steps that an answer takes, never the answer.

Prompt lookup follows vLLM: it takes the longest n-gram at the end of the tokens, with n from `least` to
`most`, that also occurs earlier, and drafts the tokens behind its first occurrence.
"""

from itertools import groupby
from typing import Protocol

import numpy as np
import torch

from sundog.actors.core.batch import Batch
from sundog.runtime.engine.requests import Requests
from sundog.runtime.model.model import Model
from sundog.runtime.sampling.sampler import sample
from sundog.runtime.step.drafts import Drafts
from sundog.runtime.step.step import Ints, Part, Step, assemble


def lookup(token_T: Ints, *, least: int, most: int, num_drafts: int) -> Ints:
    """Return up to `num_drafts` tokens behind an earlier occurrence; none without one. O(T × n)."""
    last = len(token_T) - 1
    end_M = np.flatnonzero(token_T[:last] == token_T[last])
    length = 1
    while length < most and len(end_M):
        longer_M = end_M[end_M >= length]
        longer_M = longer_M[token_T[longer_M - length] == token_T[last - length]]
        if not len(longer_M):
            break
        end_M, length = longer_M, length + 1
    if length < least or not len(end_M):
        return token_T[:0]
    first = int(end_M[0]) + 1
    return token_T[first : first + num_drafts]


Pairs = tuple[tuple[str, int], ...]


class Speculator(Protocol):
    """Source of drafts for requests whose latest tokens are known."""

    def propose(self, batch: Batch, step: Step, requests: Requests) -> Pairs:
        """Store drafts for requests that sampled in the step; return the number for each."""
        ...


class PromptLookup:
    """Drafts by n-grams of `least` to `most` tokens, within the context of `max_model_len`."""

    def __init__(self, drafts: Drafts, num_tokens: int, max_model_len: int, least: int, most: int) -> None:
        self._drafts, self._num_tokens, self._max_model_len = drafts, num_tokens, max_model_len
        self._least, self._most = least, most

    def propose(self, batch: Batch, step: Step, requests: Requests) -> Pairs:
        """Store drafts of requests that sampled in the step. O(known tokens) for each request."""
        found = []
        for name in self._drafts.wanting(step.request_ids):
            tokens = self._drafts.tokens(name)
            most = min(self._num_tokens, self._max_model_len - len(tokens))
            guesses = lookup(tokens, least=self._least, most=self._most, num_drafts=max(most, 0)).tolist()
            if guesses:
                self._drafts.keep(name, guesses)
                found.append((name, len(guesses)))
        return tuple(found)


class DraftModel:
    """Drafts by a smaller model, which samples with the request's own parameters and random numbers."""

    def __init__(self, model: Model, drafts: Drafts, num_tokens: int, max_model_len: int) -> None:
        self._model, self._drafts = model, drafts
        self._num_tokens, self._max_model_len = num_tokens, max_model_len
        self._computed: dict[str, int] = {}
        self._ahead: dict[str, list[int]] = {}
        """Drafts computed behind the known tokens; correct ones need not be computed again."""

    @torch.inference_mode()
    def propose(self, batch: Batch, step: Step, requests: Requests) -> Pairs:
        """Compute the step's tokens in one pass, then one pass for each further draft."""
        for name in (*batch.finished, *batch.preempted):
            self._computed.pop(name, None)
            self._ahead.pop(name, None)
        for admission in batch.admitted:
            self._computed[admission.request_id] = admission.num_computed_tokens
            self._ahead[admission.request_id] = []
        found: dict[str, list[int]] = {}
        parts = self._catch_up(batch, step, requests)
        while parts:
            guesses = self._pass(parts, requests)
            for name, token in guesses.items():
                found.setdefault(name, []).append(token)
            parts = self._next(found, list(guesses), requests)
        for name, tokens in found.items():
            self._drafts.keep(name, tokens)
            self._ahead[name] = tokens[:-1]
        return tuple((name, len(tokens)) for name, tokens in found.items())

    def _catch_up(self, batch: Batch, step: Step, requests: Requests) -> list[Part]:
        """Return the tokens that the step computed and the draft model lacks, with newly sampled ones."""
        sampled = set(step.request_ids)
        wanting = set(self._drafts.wanting(step.request_ids))
        tables, alone = requests.tables(), list[Part]()
        for name in dict.fromkeys((*step.request_ids, *(chunk.request_id for chunk in batch.chunks))):
            row, known = requests.row(name), self._drafts.tokens(name)
            num_known = len(known) if name in sampled else requests.num_computed(name)
            end = min(num_known, int(tables.num_blocks[row]) * tables.block_size)
            start = min(self._start(name, known), end - 1)
            self._computed[name], self._ahead[name] = end, []
            drafts = name in wanting and end == len(known) < self._max_model_len
            first_N = np.array([start], np.int64)
            row_N = np.array([row], np.int64)
            alone.append(
                Part(
                    (name,),
                    row_N,
                    first_N=first_N,
                    num_queries=end - start,
                    token_T=known[start:end],
                    num_samples=int(drafts),
                )
            )
        alone.sort(key=_shape)
        return [_together(list(group)) for _, group in groupby(alone, key=_shape)]

    def _start(self, name: str, known: Ints) -> int:
        """Return the first token to compute; drafts that proved correct are computed already."""
        start = self._computed[name]
        ahead = self._ahead[name]
        for token, draft in zip(known[start : start + len(ahead)].tolist(), ahead, strict=False):
            if token != draft:
                break
            start += 1
        return start

    def _pass(self, parts: list[Part], requests: Requests) -> dict[str, int]:
        step, rows = assemble(parts, requests.tables())
        logits_RV = self._model.logits(step)
        if not step.request_ids:
            return {}
        sampled = sample(logits_RV, requests.choices(rows))
        pairs = enumerate(zip(step.request_ids, sampled.tokens, strict=True))
        return {name: token for row, (name, token) in pairs if row not in sampled.failed}

    def _next(self, found: dict[str, list[int]], names: list[str], requests: Requests) -> list[Part]:
        tables, rows, first, own = requests.tables(), list[int](), list[int](), list[str]()
        for name in names:
            row, position = requests.row(name), self._computed[name] + len(found[name]) - 1
            room = min(int(tables.num_blocks[row]) * tables.block_size, self._max_model_len - 1)
            if len(found[name]) < self._num_tokens and position < room:
                own.append(name)
                rows.append(row)
                first.append(position)
        if not own:
            return []
        tokens = np.array([found[name][-1] for name in own], np.int64)
        return [
            Part(
                tuple(own),
                np.array(rows, np.int64),
                first_N=np.array(first, np.int64),
                num_queries=1,
                token_T=tokens,
                num_samples=1,
            )
        ]


def _shape(part: Part) -> tuple[int, int]:
    return part.num_queries, part.num_samples


def _together(parts: list[Part]) -> Part:
    return Part(
        tuple(name for part in parts for name in part.request_ids),
        np.concatenate([part.row_N for part in parts]),
        first_N=np.concatenate([part.first_N for part in parts]),
        num_queries=parts[0].num_queries,
        token_T=np.concatenate([part.token_T for part in parts]),
        num_samples=parts[0].num_samples,
    )
