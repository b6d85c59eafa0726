"""The seam between the graph and a cost model: the work of one step, in counts."""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]


class StepWork(NamedTuple):
    """What one step computes.

    `num_decodes` requests compute one token each and read `decode_context_tokens` keys and values
    in all, their new ones included. Each of `chunks` is (new tokens, tokens computed before).
    `num_samples` positions go through the output head.
    """

    num_decodes: int
    decode_context_tokens: int
    chunks: tuple[tuple[int, int], ...] = ()
    num_samples: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens computed."""
        return self.num_decodes + sum(new for new, _ in self.chunks)

    @property
    def prefill_pairs(self) -> int:
        """Pairs of a query and a key it sees, over all chunks (causal attention)."""
        return sum(new * before + new * (new + 1) // 2 for new, before in self.chunks)

    def decode_contexts(self, num_steps: int) -> Seconds:
        """`decode_context_tokens` of each of `num_steps` equal decode steps, as float64."""
        first, each = self.decode_context_tokens, self.num_decodes
        return np.arange(first, first + num_steps * each, each, dtype=np.float64)


class CostModel(Protocol):
    """Seconds of a step, and of each step of a run in which only contexts grow.

    Law: `run_s(work, n)[i]` equals `step_s` of the i-th step bit for bit, so that results do not
    depend on how steps are grouped. Work without tokens costs nothing.
    """

    def step_s(self, work: StepWork) -> float:
        """Seconds of one step."""
        ...

    def run_s(self, work: StepWork, num_steps: int) -> Seconds:
        """Seconds of each of `num_steps` decode steps; every one adds `num_decodes` to the context.

        `work` is the first of them and has no chunks.
        """
        ...
