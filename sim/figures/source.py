"""Where the rows of a run are when its figures are made, and distributions over its finished requests.

A source reads rows from memory or from disk, in parts, and as seldom as memory allows.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from sim.figures.statistics.distribution import AT_ONCE, Distribution, Part, distribution_of
from sim.record.columns import Columns, Steps
from sim.record.rows import Rows, latencies, step_intervals


class Source(Protocol):
    """Where the rows of a run are: in memory, or on disk."""

    def requests(self) -> Iterator[Rows]:
        """All requests in order, in parts."""
        ...

    def intervals(self) -> Iterator[Part]:
        """The intervals between the tokens of each request, in any order, with their numbers."""
        ...


class InMemory:
    """Columns and steps that are all in memory, as a Source."""

    def __init__(self, columns: Columns, steps: Sequence[Steps]) -> None:
        self._steps = steps
        self._rows = Rows.of(columns)

    def requests(self) -> Iterator[Rows]:
        yield self._rows

    def intervals(self) -> Iterator[Part]:
        for steps in self._steps:
            yield step_intervals(steps)
            yield np.array(steps.gaps_s), None


NORMALIZED = "normalized_latency_s"
FIGURES = ("ttft_s", "tpot_s", "e2e_s", "queueing_s", "prefill_s", "decode_s", NORMALIZED)


def distributions(
    source: Source, front_end_s: float, num_requests: int, at_once: int = AT_ONCE
) -> dict[str, Distribution | None]:
    """Each of `FIGURES`; a reading of the rows keeps at most `at_once` values.

    A run on disk is decompressed by each reading: of 100,000 requests there is one, of a million four.
    """
    found: dict[str, Distribution | None] = {}
    together = at_once // max(num_requests, 1)
    for first in range(0, len(FIGURES), max(together, 1)):
        names = FIGURES[first : first + max(together, 1)]
        if together:
            kept: dict[str, list[Part]] = {name: [] for name in names}
            for parts in _read(source, front_end_s, names):
                for name, part in zip(names, parts, strict=True):
                    kept[name].append(part)
            found |= {name: distribution_of(partial(iter, parts)) for name, parts in kept.items()}
        else:
            (name,) = names
            found[name] = distribution_of(partial(_one, source, front_end_s, name))
    return found


def _one(source: Source, front_end_s: float, name: str) -> Iterator[Part]:
    return (part for (part,) in _read(source, front_end_s, (name,)))


def _read(source: Source, front_end_s: float, names: Sequence[str]) -> Iterator[list[Part]]:
    """Some figures of every finished request, as the rows come in parts."""
    for rows in source.requests():
        times = latencies(rows, front_end_s)
        parts: list[Part] = []
        for name in names:
            if name == NORMALIZED:
                values = times.e2e_s / np.maximum(rows.num_output_tokens, 1)
            else:
                values = getattr(times, name)
            values = values[rows.is_done]
            parts.append((values[~np.isnan(values)], None))
        yield parts
