"""Requests and steps as numpy columns, and per-request figures derived from them."""

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sundog.actors.core.records import dataclass
from sundog.sim.record.client_record import OWN, ClientColumns
from sundog.sim.record.columns import MOVED, USED, Columns, Groups, MovedColumns, StepColumns

if TYPE_CHECKING:
    import pyarrow as pa


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Intervals = tuple[Floats, Ints | None]
"""Times between tokens, and the number of occurrences of each; None if each occurs once."""


class Rows(NamedTuple):
    """Requests, one element each, in order of arrival; NaN for missing values.

    `replica` is -1 for a request that was never admitted; `is_done` marks requests that finished, and were
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
        """Return the first `count` rows of a recorder, or all."""
        count = len(columns) if count is None else count
        values: list[Any] = [np.array(getattr(columns, name)[:count], dtype=np.float64) for name in TIMES]
        values += [np.array(getattr(columns, name)[:count], dtype=np.int64) for name in COUNTS]
        reasons, tenants = columns.reason[:count], columns.tenant[:count]
        return cls._make([*values, finished(reasons), reasons, tenants, *limits_of(columns, count)])

    def chosen(self, are_chosen: NDArray[np.bool_]) -> "Rows":
        """Return the marked rows."""
        places = np.flatnonzero(are_chosen).tolist()
        return Rows._make(
            [
                column[are_chosen] if isinstance(column, np.ndarray) else [column[place] for place in places]
                for column in self
            ]
        )


TIMES, COUNTS = Rows._fields[:4], Rows._fields[4:10]
"""Columns shared with a recorder: times, and numbers from `num_prompt_tokens` to `replica`."""


def limits_of(columns: Columns, count: int | None = None) -> tuple[Floats, Floats, Floats]:
    """Return each request's own limits for TTFT, TPOT and E2E; NaN if it has none."""
    names = columns.request_id[:count]
    found = np.full((3, len(names)), np.nan)
    if columns.limits_s:
        for row, name in enumerate(names):
            for kind, limit_s in enumerate(columns.limits_s.get(name, ())):
                if limit_s is not None:
                    found[kind, row] = limit_s
    return found[0], found[1], found[2]


def joined(parts: Sequence[Rows]) -> Rows:
    """Concatenate parts in order."""
    if len(parts) == 1:
        return parts[0]
    columns = zip(*parts, strict=True)
    return Rows._make(
        np.concatenate(column) if isinstance(column[0], np.ndarray) else list(chain.from_iterable(column))
        for column in columns
    )


def finished(reasons: Sequence[str | None]) -> NDArray[np.bool_]:
    """Mark the requests that ended with all their tokens."""
    return np.array([reason not in (None, "abort", "error", "refused") for reason in reasons], dtype=bool)


def group_column(groups: Groups, name: str) -> Ints:
    """Copy a column of counts as int64; missing `USED` blocks are -1."""
    column = np.array(groups.column(name), dtype=np.int64)
    return column - 1 if name in USED else column


def step_intervals(steps: StepColumns) -> tuple[Floats, Ints]:
    """Return the time between each step and the previous one, and the number of requests with a token in
    both.
    """
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
    """Figures per request, one element per row of the recorder; NaN for missing values.

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
    """Return the latencies of requests."""
    later_tokens = rows.num_output_tokens.astype(np.float64) - 1
    tpot = np.full(len(later_tokens), np.nan)
    decoding_s = rows.finish_s - rows.first_token_s
    np.divide(decoding_s, later_tokens, out=tpot, where=later_tokens > 0)
    slowdown, running_s = np.full(len(tpot), np.nan), rows.finish_s - rows.first_scheduled_s
    np.divide(rows.finish_s - rows.arrival_s, running_s, out=slowdown, where=running_s > 0)
    return RequestTimes(
        rows.first_token_s - rows.arrival_s + front_end_s,
        tpot,
        e2e_s=rows.finish_s - rows.arrival_s + front_end_s,
        queueing_s=rows.first_scheduled_s - rows.arrival_s,
        prefill_s=rows.first_token_s - rows.first_scheduled_s,
        decode_s=decoding_s,
        slowdown=slowdown,
    )


REQUEST_COLUMNS = (
    "request_id",
    "tenant",
    "replica",
    "reason",
    "refusal",
    "arrival_s",
    "first_scheduled_s",
    "first_token_s",
    "finish_s",
    "num_prompt_tokens",
    "num_output_tokens",
    "prefix_hit_tokens",
    "num_preemptions",
    "recomputed_tokens",
    "queueing_s",
    "ttft_s",
    "tpot_s",
    "e2e_s",
    "slo_ttft_s",
    "slo_tpot_s",
    "slo_e2e_s",
)
STEP_COLUMNS = (
    "replica",
    "step",
    "start_s",
    "end_s",
    "num_decodes",
    "num_prefills",
    "num_prefill_tokens",
    "num_waiting",
    "num_preempted",
    "num_finished",
    "num_drafts",
    "num_accepted",
    "num_intervals",
    *USED,
)


def requests_table(columns: Columns, count: int, front_end_s: float) -> "pa.Table":
    """Return the first `count` requests, in order of arrival; missing values are null."""
    import pyarrow as pa

    rows = Rows.of(columns, count)
    times = latencies(rows, front_end_s)
    arrays: dict[str, Any] = {}
    refusals = columns.refusals
    arrays["refusal"] = pa.array([refusals.get(name) for name in columns.request_id[:count]], pa.string())
    own = OWN if isinstance(columns, ClientColumns) else MOVED if isinstance(columns, MovedColumns) else ()
    for name in (*REQUEST_COLUMNS, *own):
        if name in arrays:
            continue
        owner = times if name in times.__slots__ else rows if name.startswith("slo_") else columns
        values = getattr(owner, name)[:count]
        if isinstance(values, list):
            arrays[name] = pa.array(values, pa.string())
            continue
        numbers = np.array(values)
        absent = np.isnan(numbers) if name.endswith("_s") else numbers < 0
        arrays[name] = pa.array(numbers, mask=absent)
    return pa.table({name: arrays[name] for name in (*REQUEST_COLUMNS, *arrays)})


def steps_table(replica: int, steps: StepColumns) -> "pa.Table":
    """Return a row for each step of a replica in memory; `USED` is null between two samples.

    `num_drafts` were verified, `num_accepted` of them accepted. `num_intervals` is how often the time since
    the previous step is one between two tokens.
    """
    import pyarrow as pa

    groups, end_s = steps.groups, np.array(steps.end_s)
    sizes = group_column(groups, "num_steps")
    last = np.cumsum(sizes) - 1
    first = last - sizes + 1
    start_s = np.concatenate((np.zeros(1), end_s))[: len(end_s)]
    start_s[first[sizes > 0]] = np.array(groups.column("start_s"))[sizes > 0]
    num_before = steps.num_steps - len(end_s)
    arrays: dict[str, Any] = {
        "replica": np.full(len(end_s), replica),
        "step": np.arange(1, len(end_s) + 1) + num_before,
        "start_s": start_s,
        "end_s": end_s,
    }
    for name in ("num_decodes", "num_prefills", "num_prefill_tokens", "num_waiting"):
        arrays[name] = np.repeat(group_column(groups, name), sizes)
    arrays["num_waiting"][last[sizes > 0]] = group_column(groups, "num_waiting_at_end")[sizes > 0]
    for name in ("num_preempted", "num_finished", "num_drafts", "num_accepted"):
        arrays[name] = _at(last, sizes, groups, name, len(end_s), absent=0)
    arrays["num_intervals"] = step_intervals(steps)[1]
    for name in USED:
        used = _at(last, sizes, groups, name, len(end_s), absent=-1)
        arrays[name] = pa.array(used, mask=used < 0)
    return pa.table({name: arrays[name] for name in STEP_COLUMNS})


def _at(
    last: Any, sizes: Any, groups: Groups, name: str, num_steps: int, absent: int
) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Return a column that has a value only for the last step of each group."""
    column = np.full(num_steps, absent, dtype=np.int64)
    column[last[sizes > 0]] = group_column(groups, name)[sizes > 0]
    return column
