"""A Recorder's rows as two Arrow tables: a row per request, and a row per step.

Steps that a run did in one event become rows of their own, so that decode runs change nothing.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from sim.record.client_record import OWN, ClientColumns
from sim.record.columns import Columns, Groups, Steps
from sim.record.rows import Rows, group_column, latencies, step_intervals

if TYPE_CHECKING:
    import pyarrow as pa

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
USED = ("used_blocks_before", "used_blocks", "used_blocks_after")
"""The `Blocks` of a step, null where there are none."""
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
    """The first `count` requests, in order of arrival; what never came is null."""
    import pyarrow as pa

    rows = Rows.of(columns, count)
    times = latencies(rows, front_end_s)
    arrays: dict[str, Any] = {}
    refusals = columns.refusals
    arrays["refusal"] = pa.array([refusals.get(name) for name in columns.request_id[:count]], pa.string())
    for name in (*REQUEST_COLUMNS, *(OWN if isinstance(columns, ClientColumns) else ())):
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


def steps_table(replica: int, steps: Steps) -> "pa.Table":
    """One row per step of a replica in memory; `USED` is null between two samples.

    `num_drafts` were verified, `num_accepted` of them accepted. `num_intervals` is how often the time since
    the step before is one between two tokens.
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
    """A column that only the last step of each group has."""
    column = np.full(num_steps, absent, dtype=np.int64)
    column[last[sizes > 0]] = group_column(groups, name)[sizes > 0]
    return column
