"""How near a server is to as many requests as it can run at once."""

import math
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sim.record.rows import Floats, Rows

KNEE = 0.85
"""From this saturation on small errors of step time become large ones of waiting time."""
Regime = Literal["below the knee", "near the knee", "beyond the knee"]
Parts = Callable[[], Iterator[tuple[Rows, NDArray[np.bool_]]]]
"""Requests in parts, and which of them count, all of which finished."""


def regime_of(saturation: float) -> Regime:
    """Whether requests wait briefly, perhaps long, or ever longer while the load lasts."""
    if saturation < KNEE:
        return "below the knee"
    return "near the knee" if saturation < 1 else "beyond the knee"


def of_capacity(saturation: float) -> str:
    """In words; a share of 978 % says less than 9.8 times."""
    share = f"{saturation:.0%} of" if saturation < 1 else f"{saturation:,.1f} times"
    return f"{share} what can run at once"


def saturation(parts: Parts, max_num_running: int, num_blocks: int, block_size: int) -> float | None:
    """Mean requests in the server over how many it can run, by the scarcer of running slots and blocks.

    By Little's law; None without requests. They are taken to hold the blocks of their prompts and
    half of their answers; prompts that hit the prefix cache share blocks, which this leaves out.
    Sums are exact, so that it does not matter how the requests are cut into parts.
    """
    spans: list[tuple[float, float]] = []
    spent, held = list[Floats](), list[Floats]()
    for rows, chosen in parts():
        if chosen.any():
            arrival_s = rows.arrival_s[chosen]
            spans.append((float(arrival_s.min()), float(arrival_s.max())))
            spent.append(_spent_s(rows)[chosen])
            held.append(_held_token_s(rows)[chosen])
    spent_s = _total(spent)
    if not spent_s:
        return None
    span_s = max(last for _, last in spans) - min(first for first, _ in spans)
    held_blocks = max(_total(held) / spent_s / block_size, 1.0)
    return spent_s / (span_s or 1.0) / min(max_num_running, (num_blocks - 1) / held_blocks)


def _total(parts: list[Floats]) -> float:
    return math.fsum(chain.from_iterable(part.tolist() for part in parts))


def _spent_s(rows: Rows) -> Floats:
    spent: Floats = rows.finish_s - rows.arrival_s
    return spent


def _held_token_s(rows: Rows) -> Floats:
    held = rows.num_prompt_tokens - rows.prefix_hit_tokens + rows.num_output_tokens / 2
    product: Floats = held * _spent_s(rows)
    return product
