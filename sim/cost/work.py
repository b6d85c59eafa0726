"""The seam between the graph and a cost model: the work of one step, in counts."""

from dataclasses import dataclass, field

import numpy as np
from mypy_extensions import mypyc_attr
from numpy.typing import NDArray

Seconds = NDArray[np.float64]
L2 = 2
"""How much faster than memory the L2 cache is taken to be; not fitted."""


@dataclass(slots=True)
class StepWork:
    """What one step computes.

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
    """Tokens computed."""

    def __post_init__(self) -> None:
        self.num_tokens = self.num_decodes + self.num_draft_tokens
        if self.chunks:
            self.num_tokens += sum([new for new, _ in self.chunks])

    @property
    def prefill_pairs(self) -> int:
        """Pairs of a query and a key it sees, over all chunks (causal attention)."""
        return sum(new * before + new * (new + 1) // 2 for new, before in self.chunks)

    @property
    def read_context_tokens(self) -> int:
        """Tokens of context; those that other requests read too count at the price of the GPU's cache.

        What requests have in common is read by all of them in the same kernel, and a layer's part
        of it fits into the L2 cache of a data-centre GPU (50 MB on an H100).
        """
        return self.decode_context_tokens - self.num_shared_tokens + self.num_shared_tokens // L2

    def next_decodes(self) -> "StepWork":
        """The step after this one of the same decodes: their contexts have grown by one each."""
        context = self.decode_context_tokens + self.num_decodes
        routed = self.num_routed_tokens
        return StepWork(self.num_decodes, context, (), self.num_samples, self.num_shared_tokens, 0, routed)

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
        """Seconds of one step."""
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
    """How far outside the measured sizes each operator was asked: the largest factor."""

    factors: dict[str, float] = field(default_factory=dict)

    def note(self, operator: str, value: float, smallest: float, largest: float) -> None:
        """An operator was asked for `value`, measured from `smallest` to `largest`."""
        if smallest <= value <= largest:
            return
        factor = float(max(value / largest, smallest / max(value, 1e-9)))
        if factor > self.factors.get(operator, 1.0):
            self.factors[operator] = factor
