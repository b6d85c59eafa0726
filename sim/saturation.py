"""How near a server is to as many requests as it can run at once."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.rows import Rows

KNEE = 0.85
"""From this saturation on small errors of step time become large ones of waiting time."""


@dataclass(slots=True)
class Flow:
    """How long requests were in the server, and how many tokens they held: Little's law.

    Requests are taken to hold the blocks of their prompts and half of their answers; prompts that
    hit the prefix cache share blocks, which this leaves out.
    """

    spent_s: float = 0.0
    held_token_s: float = 0.0
    first_s: float = math.inf
    last_s: float = -math.inf

    def add(self, rows: Rows, chosen: NDArray[np.bool_]) -> None:
        """Some of these requests, all of which finished."""
        if not chosen.any():
            return
        arrival_s, spent_s = rows.arrival_s[chosen], (rows.finish_s - rows.arrival_s)[chosen]
        held = rows.num_prompt_tokens - rows.prefix_hit_tokens + rows.num_output_tokens / 2
        self.spent_s += math.fsum(spent_s.tolist())
        self.held_token_s += math.fsum((held[chosen] * spent_s).tolist())
        self.first_s = min(self.first_s, float(arrival_s.min()))
        self.last_s = max(self.last_s, float(arrival_s.max()))

    def saturation(self, max_num_running: int, num_blocks: int, block_size: int) -> float | None:
        """Requests in the server while requests came, over the fewer of its seats and KV room."""
        if not self.spent_s:
            return None
        in_server = self.spent_s / (self.last_s - self.first_s or 1.0)
        held_blocks = max(self.held_token_s / self.spent_s / block_size, 1.0)
        return in_server / min(max_num_running, (num_blocks - 1) / held_blocks)
