"""Requests and steps as numpy columns, and what follows from them for each request."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.record.columns import Columns, Groups, Steps

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Intervals = tuple[Floats, Ints | None]
"""Times between tokens, and how often each occurs; None is once."""


class Rows(NamedTuple):
    """Some requests, one element each, in order of arrival; NaN where there is none.

    `replica` is -1 for a request that none has admitted; `is_done` marks requests that finished, and were
    neither aborted nor refused.
    """

    arrival_s: Floats
    first_scheduled_s: Floats
    first_token_s: Floats
    finish_s: Floats
    num_prompt_tokens: Ints
    num_output_tokens: Ints
    num_preemptions: Ints
    prefix_hit_tokens: Ints
    recomputed_tokens: Ints
    replica: Ints
    is_done: NDArray[np.bool_]
    reason: Sequence[str | None]
    tenant: Sequence[str | None]
    slo_ttft_s: Floats
    slo_tpot_s: Floats
    slo_e2e_s: Floats

    @classmethod
    def of(cls, columns: Columns, count: int | None = None) -> "Rows":
        """The first `count` rows of a recorder, or all."""

        def floats(values: "array[float]") -> Floats:
            return np.array(values[:count], dtype=np.float64)

        def whole(values: "array[int]") -> Ints:
            return np.array(values[:count], dtype=np.int64)

        return cls(
            floats(columns.arrival_s),
            floats(columns.first_scheduled_s),
            floats(columns.first_token_s),
            floats(columns.finish_s),
            whole(columns.num_prompt_tokens),
            whole(columns.num_output_tokens),
            whole(columns.num_preemptions),
            whole(columns.prefix_hit_tokens),
            whole(columns.recomputed_tokens),
            whole(columns.replica),
            finished(columns.reason[:count]),
            columns.reason[:count],
            columns.tenant[:count],
            *limits_of(columns, count),
        )


def limits_of(columns: Columns, count: int | None = None) -> tuple[Floats, Floats, Floats]:
    """What each request wants of TTFT, TPOT and E2E itself; NaN where it wants nothing."""
    names = columns.request_id[:count]
    found = np.full((3, len(names)), np.nan)
    if columns.limits_s:
        for row, name in enumerate(names):
            for kind, limit_s in enumerate(columns.limits_s.get(name, ())):
                if limit_s is not None:
                    found[kind, row] = limit_s
    return found[0], found[1], found[2]


def joined(parts: Sequence[Rows]) -> Rows:
    """Some parts as one."""
    if len(parts) == 1:
        return parts[0]
    columns = zip(*parts, strict=True)
    return Rows._make(
        np.concatenate(column) if isinstance(column[0], np.ndarray) else list(chain.from_iterable(column))
        for column in columns
    )


def finished(reasons: Sequence[str | None]) -> NDArray[np.bool_]:
    """Which requests ended with all their tokens."""
    return np.array([reason not in (None, "abort", "error", "refused") for reason in reasons], dtype=bool)


def group_column(groups: Groups, name: str) -> Ints:
    """A column of counts."""
    return np.array(groups.column(name), dtype=np.int64)


def step_intervals(steps: Steps) -> tuple[Floats, Ints]:
    """The time between each step in memory and the one before, and how many intervals it is."""
    groups, end_s = steps.groups, np.array(steps.end_s, dtype=np.float64)
    sizes = group_column(groups, "num_steps")
    counts = np.repeat(group_column(groups, "num_intervals"), sizes)
    last = np.cumsum(sizes)[sizes > 0] - 1
    first = last - sizes[sizes > 0] + 1
    counts[first] = group_column(groups, "num_first_intervals")[sizes > 0]
    counts[last] = group_column(groups, "num_last_intervals")[sizes > 0]
    return np.diff(end_s, prepend=steps.before_s), counts


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Per-request figures, one element per row of the recorder; NaN where there is none.

    `queueing_s`, `prefill_s` and `decode_s` are the stages: until the first step with it, until its first
    token, until its last. `slowdown` is the time of all three over that of the last two.
    """

    ttft_s: Floats
    tpot_s: Floats
    e2e_s: Floats
    queueing_s: Floats
    prefill_s: Floats
    decode_s: Floats
    slowdown: Floats


def latencies(rows: Rows, front_end_s: float) -> RequestTimes:
    """The latencies of some requests."""
    later_tokens = rows.num_output_tokens.astype(np.float64) - 1
    tpot = np.full(len(later_tokens), np.nan)
    decoding_s = rows.finish_s - rows.first_token_s
    np.divide(decoding_s, later_tokens, out=tpot, where=later_tokens > 0)
    slowdown, running_s = np.full(len(tpot), np.nan), rows.finish_s - rows.first_scheduled_s
    np.divide(rows.finish_s - rows.arrival_s, running_s, out=slowdown, where=running_s > 0)
    return RequestTimes(
        rows.first_token_s - rows.arrival_s + front_end_s,
        tpot,
        rows.finish_s - rows.arrival_s + front_end_s,
        rows.first_scheduled_s - rows.arrival_s,
        rows.first_token_s - rows.first_scheduled_s,
        decoding_s,
        slowdown,
    )
