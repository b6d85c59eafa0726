"""The seam between the graph and a cost model: the work of one step, in counts.

`WorkFold` makes it from the diffs of Batches, in O(what changed). All decoding requests advance together, so
their contexts are kept relative to one decode clock: a request that joins at clock J with context X has
context X + (clock - J) later, and the sum over all grows by their number each step. Only what joins, leaves
or idles is touched.
"""

from dataclasses import dataclass, field

import numpy as np
from mypy_extensions import mypyc_attr
from numpy.typing import NDArray

from sundog.actors.core.batch import Batch

Seconds = NDArray[np.float64]
L2 = 2
"""The factor by which the L2 cache is taken to be faster than memory; not fitted."""


def seen_pairs(new: int, before: int, most: int | None = None) -> int:
    """Pairs of a query and a key it sees in a chunk behind `before` tokens; a query sees at most `most`."""
    if most is None or new + before <= most:
        return new * before + new * (new + 1) // 2
    rising = max(most - before, 0)
    return rising * before + rising * (rising + 1) // 2 + (new - rising) * most


@dataclass(slots=True)
class StepWork:
    """The work that one step computes.

    `num_decodes` requests compute one token each and read `decode_context_tokens` keys and values
    in all, their new ones included. Each of `chunks` is (new tokens, tokens computed before).
    `num_samples` positions go through the output head. `num_shared_tokens` of the context are in
    blocks that another of the decodes reads as well: these are read from memory once.

    Decodes compute `num_draft_tokens` drafts beside their tokens, in one pass over their context; each is a
    sample, too. Of data-parallel ranks that go in step, `num_routed_tokens` are those of all ranks together,
    which their experts compute; 0 is the step's own.
    """

    num_decodes: int
    decode_context_tokens: int
    chunks: tuple[tuple[int, int], ...] = ()
    num_samples: int = 0
    num_shared_tokens: int = 0
    num_draft_tokens: int = 0
    num_routed_tokens: int = 0
    num_tokens: int = field(init=False)
    """The number of tokens that the step computes."""

    def __post_init__(self) -> None:
        self.num_tokens = self.num_decodes + self.num_draft_tokens
        if self.chunks:
            self.num_tokens += sum([new for new, _ in self.chunks])

    @property
    def prefill_pairs(self) -> int:
        """Pairs of a query and a key it sees, over all chunks (causal attention)."""
        return sum(seen_pairs(new, before) for new, before in self.chunks)

    @property
    def read_context_tokens(self) -> int:
        """The tokens of context that are read; those of several requests count at the price of the cache.

        What requests have in common is read by all of them in the same kernel, and a layer's part
        of it fits into the L2 cache of a data-centre GPU (50 MB on an H100).
        """
        return self.decode_context_tokens - self.num_shared_tokens + self.num_shared_tokens // L2

    def next_decodes(self) -> "StepWork":
        """The step after this one of the same decodes: their contexts have grown by one each."""
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

    def few_contexts(self, num_steps: int) -> list[float]:
        """`decode_context_tokens` of each of a few equal decode steps."""
        first, each = float(self.decode_context_tokens), float(self.num_decodes)
        return [first + step * each for step in range(num_steps)]

    def decode_contexts(self, num_steps: int) -> Seconds:
        """`decode_context_tokens` of each of `num_steps` equal decode steps, as float64."""
        return _rising(self.decode_context_tokens, self.num_decodes, num_steps)

    def read_contexts(self, num_steps: int) -> Seconds:
        """`read_context_tokens` of each of `num_steps` equal decode steps, as float64."""
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
        """Return the seconds that one step takes."""
        raise NotImplementedError

    def few_s(self, work: StepWork, num_steps: int) -> list[float]:
        """`run_s` where there are few steps, for which the set-up of numpy would cost more than they do."""
        seconds = [self.step_s(work)]
        for _ in range(num_steps - 1):
            work = work.next_decodes()
            seconds.append(self.step_s(work))
        return seconds

    def run_s(self, work: StepWork, num_steps: int) -> Seconds:
        """Seconds of each of `num_steps` decode steps; every one adds `num_decodes` to the context.

        `work` is the first of them and has no chunks.
        """
        raise NotImplementedError


@dataclass(slots=True)
class Coverage:
    """The largest factor by which each operator was asked outside the measured sizes."""

    factors: dict[str, float] = field(default_factory=dict)

    def note(self, operator: str, value: float, smallest: float, largest: float) -> None:
        """An operator was asked for `value`, measured from `smallest` to `largest`."""
        if smallest <= value <= largest:
            return
        factor = float(max(value / largest, smallest / max(value, 1e-9)))
        if factor > self.factors.get(operator, 1.0):
            self.factors[operator] = factor


class WorkFold:
    """The state one backend keeps of its requests; `begin` a batch, then `advance` its steps.

    Context is the number of tokens whose keys and values a decode reads, its own included. Blocks
    of prompts that several decodes hold are counted from the first prefix hit on, in O(blocks) per
    request that joins or leaves; `block_size` 0 counts none.
    `continues` says whether any request of the last batch begun was there before it: then the
    scheduler had work all the time.
    """

    __slots__ = (
        "_block_size",
        "_clock",
        "_context",
        "_idle",
        "_joining",
        "_members",
        "_num_readers",
        "_num_shared_blocks",
        "_prefilling",
        "_shares",
        "_tables",
        "continues",
    )

    def __init__(self, block_size: int = 0) -> None:
        self.continues = False
        self._block_size = block_size
        self._shares = False
        """True if any request has hit what others left; one that resumes finds its own."""
        self._num_shared_blocks = 0
        """The number of readers that blocks have beyond one each."""
        self._num_readers: list[int] = []
        """The numbers of decodes that read each block, by the block's number."""
        self._tables: dict[str, tuple[int, ...]] = {}
        """The blocks of each request's first chunk, with those it shares in front."""
        self._clock = 0
        self._context = 0
        self._members: dict[str, int] = {}
        self._prefilling: dict[str, int] = {}
        self._joining: list[tuple[str, int]] = []
        self._idle: tuple[str, ...] = ()

    def begin(self, batch: Batch) -> StepWork:
        """Fold the diff in and return the work of the (first) step."""
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
            prefilling[request_id] = before + num_tokens
            if chunk.samples:
                self._joining.append((request_id, before + num_tokens + 1))
        return tuple(chunks)

    def advance(self, num_steps: int, accepted: tuple[tuple[str, int], ...] = ()) -> None:
        """`num_steps` steps of the batch were done; `accepted` counts the accepted drafts of requests."""
        for request_id, count in accepted:
            self._members[request_id] += count
            self._context += count
        for request_id in self._idle:
            self._members[request_id] -= num_steps
        self._context += num_steps * (len(self._members) - len(self._idle))
        self._clock += num_steps
        for request_id, context in self._joining:
            del self._prefilling[request_id]
            self._members[request_id] = context - self._clock
            self._context += context
            if self._shares:
                self._read(self._tables[request_id])
        self._joining.clear()

    def _read(self, table: tuple[int, ...]) -> None:
        readers, num_shared = self._num_readers, 0
        num_new = max(table, default=0) + 1 - len(readers)
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
        table = self._tables.pop(request_id, ())
        if self._shares and request_id in self._members:
            self._read_no_more(table)
        offset = self._members.pop(request_id, None)
        if offset is None:
            self._prefilling.pop(request_id, None)
        else:
            self._context -= offset + self._clock
