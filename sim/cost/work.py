"""Work of one step in counts, the interface between the graph and a cost model.

`WorkFold` makes it from the diffs of Batches, in O(what changed). All decoding requests advance together, so
their contexts are kept relative to one decode clock: a request that joins at clock J with context X has
context X + (clock - J) later, and the sum over all grows by their number each step. Only requests that join,
leave or idle are touched.
"""

from dataclasses import field

import numpy as np
from mypy_extensions import mypyc_attr
from numpy.typing import NDArray

from sundog.actors.core.batch import Batch
from sundog.actors.core.records import dataclass

Seconds = NDArray[np.float64]
L2 = 2
"""Assumed speed of the L2 cache relative to memory; not fitted."""


def seen_pairs(new: int, before: int, most: int | None = None) -> int:
    """Return the pairs of a query and a key it attends to in a chunk after `before` tokens; at most `most`
    per query.
    """
    if most is None or new + before <= most:
        return new * before + new * (new + 1) // 2
    rising = max(most - before, 0)
    return rising * before + rising * (rising + 1) // 2 + (new - rising) * most


@dataclass(slots=True)
class StepWork:
    """Work that one step computes.

    `num_decodes` requests compute one token each and read `decode_context_tokens` keys and values in all,
    their new ones included. Each of `chunks` is (new tokens, tokens computed before). `num_samples` positions
    go through the output head. `num_shared_tokens` of the context are in blocks that another decode reads as
    well: these are read from memory once.

    Decodes compute `num_draft_tokens` drafts besides their tokens, in one pass over their context; each is a
    sample, too. For data-parallel ranks in step, `num_routed_tokens` are those of all ranks together, which
    their experts compute; 0 means the step's own.
    """

    num_decodes: int
    decode_context_tokens: int
    chunks: tuple[tuple[int, int], ...] = ()
    num_samples: int = 0
    num_shared_tokens: int = 0
    num_draft_tokens: int = 0
    num_routed_tokens: int = 0
    num_tokens: int = field(init=False)
    """Number of tokens that the step computes."""

    def __post_init__(self) -> None:
        self.num_tokens = self.num_decodes + self.num_draft_tokens
        for new, _ in self.chunks:
            self.num_tokens += new

    @property
    def prefill_pairs(self) -> int:
        """Pairs of a query and a key it attends to, over all chunks (causal attention)."""
        return sum(seen_pairs(new, before) for new, before in self.chunks)

    @property
    def read_context_tokens(self) -> int:
        """Tokens of context that are read; tokens read repeatedly count at the price of the cache.

        All requests that share tokens read them in the same kernel, and a layer's part of them fits into the
        L2 cache of a data-centre GPU (50 MB on an H100).
        """
        return self.decode_context_tokens - self.num_shared_tokens + self.num_shared_tokens // L2

    def next_decodes(self) -> "StepWork":
        """Return the next step of the same decodes, with contexts longer by one each."""
        context = self.decode_context_tokens + self.num_decodes
        routed = self.num_routed_tokens
        return StepWork(
            self.num_decodes,
            context,
            chunks=(),
            num_samples=self.num_samples,
            num_shared_tokens=self.num_shared_tokens,
            num_draft_tokens=0,
            num_routed_tokens=routed,
        )

    def decode_contexts(self, num_steps: int) -> Seconds:
        """Return `decode_context_tokens` of each of `num_steps` equal decode steps, as float64."""
        return _rising(self.decode_context_tokens, self.num_decodes, num_steps)

    def read_contexts(self, num_steps: int) -> Seconds:
        """Return `read_context_tokens` of each of `num_steps` equal decode steps, as float64."""
        return _rising(self.read_context_tokens, self.num_decodes, num_steps)


def _rising(first: int, each: int, count: int) -> Seconds:
    return np.arange(first, first + count * each, each, dtype=np.float64)


@mypyc_attr(allow_interpreted_subclasses=True)
class CostModel:
    """Seconds of a step, and of each step of a run in which only contexts grow.

    A class and no Protocol, whose methods compiled code would look up by name at every step.

    Law: `run_s(work, n)[i]` and `few_s(work, n)[i]` equal `step_s` of the i-th step bit for bit, so that
    results do not depend on how steps are grouped. Work without tokens costs nothing.
    """

    __slots__ = ()

    def step_s(self, work: StepWork) -> float:
        """Return the seconds of one step."""
        raise NotImplementedError

    def few_s(self, work: StepWork, num_steps: int) -> list[float]:
        """Return `run_s` for few steps, where numpy's set-up would cost more than the steps."""
        seconds = [self.step_s(work)]
        for _ in range(num_steps - 1):
            work = work.next_decodes()
            seconds.append(self.step_s(work))
        return seconds

    def run_s(self, work: StepWork, num_steps: int) -> Seconds:
        """Return the seconds of each of `num_steps` decode steps, each of which adds `num_decodes` to the
        context.

        `work` is the first step, and has no chunks.
        """
        raise NotImplementedError


@dataclass(slots=True)
class Coverage:
    """Largest ratio to its measured sizes at which each operator was used."""

    factors: dict[str, float] = field(default_factory=dict)

    def note(self, operator: str, value: float, smallest: float, largest: float) -> None:
        """Record that an operator was used at `value`, measured from `smallest` to `largest`."""
        if smallest <= value <= largest:
            return
        factor = float(max(value / largest, smallest / max(value, 1e-9)))
        if factor > self.factors.get(operator, 1.0):
            self.factors[operator] = factor


class WorkFold:
    """State of a backend's requests; `begin` a batch, then `advance` its steps.

    Context is the number of tokens whose keys and values a decode reads, its own included. Blocks of prompts
    that several decodes hold are counted from the first prefix hit on, in O(blocks) per request that joins or
    leaves; `block_size` 0 counts none. `continues` tells whether any request of the last begun batch was
    there before it: then the scheduler had work all the time.
    """

    __slots__ = (
        "_block_size",
        "_clock",
        "_context",
        "_idle",
        "_joining",
        "_members",
        "_num_blocks",
        "_num_readers",
        "_num_shared_blocks",
        "_prefilling",
        "_shares",
        "_tables",
        "continues",
    )

    def __init__(self, block_size: int = 0, num_blocks: int = 0) -> None:
        """`num_blocks` is the number of block ids, if it is known; otherwise tables are searched for it."""
        self.continues = False
        self._block_size, self._num_blocks = block_size, num_blocks
        self._shares = False
        """Whether any request has hit another's blocks; one that resumes finds its own."""
        self._num_shared_blocks = 0
        """Number of reads of shared blocks beyond the first reader of each."""
        self._num_readers: list[int] = []
        """Number of decodes that read each block, by block id."""
        self._tables: dict[str, tuple[int, ...]] = {}
        """Blocks of each request's first chunk, including shared ones before it."""
        self._clock = 0
        self._context = 0
        self._members: dict[str, int] = {}
        self._prefilling: dict[str, int] = {}
        self._joining: list[tuple[str, int]] = []
        self._idle: tuple[str, ...] = ()

    def begin(self, batch: Batch) -> StepWork:
        """Apply the batch, and return the work of its first step."""
        for request_id in batch.finished:
            self._forget(request_id)
        for request_id in batch.preempted:
            self._forget(request_id)
        self.continues = bool(self._members or self._prefilling)
        self._idle = batch.idle
        num_decodes, context = len(self._members), self._context
        if batch.idle:
            num_decodes -= len(batch.idle)
            context -= sum(self._members[name] + self._clock for name in batch.idle)
        if num_decodes != batch.num_decodes:
            raise AssertionError(
                f"step {batch.step}: the batch counts {batch.num_decodes} decodes,"
                f" its diffs so far say {num_decodes}"
            )
        shared = self._num_shared_blocks * self._block_size
        if shared and batch.idle:
            shared = self._num_shared_blocks_without(batch.idle) * self._block_size
        if not (batch.chunks or batch.admitted or batch.drafts):
            return StepWork(
                num_decodes, context, chunks=(), num_samples=num_decodes, num_shared_tokens=shared
            )
        chunks = self._take_chunks(batch)
        drafts = batch.num_draft_tokens
        num_samples = num_decodes + len(self._joining) + drafts
        return StepWork(
            num_decodes,
            context + drafts,
            chunks=chunks,
            num_samples=num_samples,
            num_shared_tokens=shared,
            num_draft_tokens=drafts,
        )

    def _take_chunks(self, batch: Batch) -> tuple[tuple[int, int], ...]:
        prefilling, chunks = self._prefilling, []
        for admission in batch.admitted:
            prefilling[admission.request_id] = admission.num_computed_tokens
            if self._block_size:
                self._tables[admission.request_id] = admission.block_ids
                hit = admission.num_computed_tokens and not admission.resumed
                if hit and not self._shares:
                    self._shares = True
                    for name in self._members:
                        self._read(self._tables[name])
        for chunk in batch.chunks:
            request_id, num_tokens = chunk.request_id, chunk.num_tokens
            before = prefilling[request_id]
            chunks.append((num_tokens, before))
            if chunk.samples:
                del prefilling[request_id]
                self._joining.append((request_id, before + num_tokens + 1))
            else:
                prefilling[request_id] = before + num_tokens
        return tuple(chunks)

    def advance(self, num_steps: int, accepted: tuple[tuple[str, int], ...] = ()) -> None:
        """Record `num_steps` finished steps of the batch; `accepted` counts the accepted drafts of
        requests.
        """
        for request_id, count in accepted:
            self._members[request_id] += count
            self._context += count
        for request_id in self._idle:
            self._members[request_id] -= num_steps
        num_decodes = len(self._members)
        if self._idle:
            num_decodes -= len(self._idle)
        self._context += num_steps * num_decodes
        self._clock += num_steps
        if not self._joining:
            return
        for request_id, context in self._joining:
            self._members[request_id] = context - self._clock
            self._context += context
            if self._shares:
                self._read(self._tables[request_id])
        self._joining.clear()

    def _read(self, table: tuple[int, ...]) -> None:
        readers, num_shared = self._num_readers, 0
        if not self._num_blocks or not readers:
            num_new = (self._num_blocks or max(table, default=0) + 1) - len(readers)
            if num_new > 0:
                readers += [0] * num_new
        for block in table:
            count = readers[block]
            readers[block] = count + 1
            num_shared += count > 0
        self._num_shared_blocks += num_shared

    def _read_no_more(self, table: tuple[int, ...]) -> None:
        readers, num_shared = self._num_readers, 0
        for block in table:
            count = readers[block]
            readers[block] = count - 1
            num_shared += count > 1
        self._num_shared_blocks -= num_shared

    def _num_shared_blocks_without(self, idle: tuple[str, ...]) -> int:
        tables = [self._tables[name] for name in idle]
        for table in tables:
            self._read_no_more(table)
        count = self._num_shared_blocks
        for table in tables:
            self._read(table)
        return count

    def _forget(self, request_id: str) -> None:
        if request_id in self._members:
            self._context -= self._members[request_id] + self._clock
            del self._members[request_id]
            if self._shares:
                self._read_no_more(self._tables[request_id])
        else:
            self._prefilling.pop(request_id, None)
        if request_id in self._tables:
            del self._tables[request_id]
