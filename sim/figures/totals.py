"""Sums over all requests of a run, which come in parts."""

import math

import numpy as np
from numpy.typing import NDArray

from actors.core.records import dataclass
from sim.record.rows import Rows


@dataclass(slots=True)
class Totals:
    """Sums over all requests."""

    num_requests: int = 0
    num_finished: int = 0
    num_aborted: int = 0
    num_met: int | None = None
    first_arrival_s: float = math.inf
    last_finish_s: float = -math.inf
    prompt_tokens: int = 0
    output_tokens: int = 0
    admitted_tokens: int = 0
    hit_tokens: int = 0
    num_preemptions: int = 0
    recomputed_tokens: int = 0

    def add(self, rows: Rows, met: NDArray[np.bool_] | None) -> None:
        """Some more requests, and which of them met every limit, if there are limits."""
        if not len(rows.arrival_s):
            return
        done = rows.is_done
        self.num_requests += len(done)
        self.num_finished += int(done.sum())
        self.num_aborted += rows.reason.count("abort")
        if met is not None:
            self.num_met = (self.num_met or 0) + int(met.sum())
        self.first_arrival_s = min(self.first_arrival_s, float(rows.arrival_s.min()))
        if done.any():
            self.last_finish_s = max(self.last_finish_s, float(rows.finish_s[done].max()))
        self.prompt_tokens += int(rows.num_prompt_tokens[done].sum())
        self.output_tokens += int(rows.num_output_tokens[done].sum())
        self.admitted_tokens += int(rows.num_prompt_tokens[rows.replica >= 0].sum())
        self.hit_tokens += int(rows.prefix_hit_tokens.sum())
        self.num_preemptions += int(rows.num_preemptions.sum())
        self.recomputed_tokens += int(rows.recomputed_tokens.sum())
