"""Columns of requests and steps keep what was added, however their memory grows."""

import math

from sundog.actors.core.batch import Batch, Chunk, Finish
from sundog.actors.messages import StepOutput
from sundog.sim.record.columns import GROUP_COLUMNS, NO_SAMPLE, Blocks, Columns, Groups
from sundog.sim.record.rows import group_column


def output(step: int) -> StepOutput:
    """A step of each kind: one that decodes on, with a prefill, with an end, and with drafts."""
    kind, name = step % 4, f"r{step}"
    batch = Batch(
        step,
        chunks=(Chunk(name, 5, True),) if kind == 1 else (),
        preempted=("p",) if step % 8 == 7 else (),
        num_decodes=step,
        drafts=((name, 3),) if kind == 3 else (),
    )
    return StepOutput(
        replica=0,
        batch=batch,
        start_s=step / 8,
        end_times_s=(step / 8 + 1,),
        tokens=None,
        finished=(Finish(name, "stop"),) if kind == 2 else (),
        num_running=1,
        num_waiting=step % 3,
        num_free_blocks=9,
        num_waiting_planned=step % 5,
        accepted=((name, 2),) if kind == 3 else (),
    )


def blocks(step: int) -> Blocks:
    return (-1 if step % 4 == 2 else step, step + 1, 0) if step % 4 in (1, 2) else NO_SAMPLE


def test_groups_have_a_row_for_each_batch_however_many_there_are() -> None:
    """Over several parts of memory; rows of steps that decode on have zeros, and no blocks."""
    groups, steps = Groups(), range(600)
    for step in steps:
        groups.add(output(step), 1, 5 * (step % 4 == 1), blocks(step), step, step + 1, step + 2)
    assert len(groups) == 600
    assert list(groups.column("start_s")) == [step / 8 for step in steps]
    wanted = {
        "num_steps": [1] * 600,
        "num_decodes": list(steps),
        "num_waiting": [step % 5 for step in steps],
        "num_waiting_at_end": [step % 3 for step in steps],
        "num_first_intervals": list(steps),
        "num_intervals": [step + 1 for step in steps],
        "num_last_intervals": [step + 2 for step in steps],
        "num_prefills": [int(step % 4 == 1) for step in steps],
        "num_prefill_tokens": [5 * (step % 4 == 1) for step in steps],
        "num_finished": [int(step % 4 == 2) for step in steps],
        "used_blocks_before": [blocks(step)[0] for step in steps],
        "used_blocks": [blocks(step)[1] for step in steps],
        "used_blocks_after": [blocks(step)[2] for step in steps],
        "num_preempted": [int(step % 8 == 7) for step in steps],
        "num_drafts": [3 * (step % 4 == 3) for step in steps],
        "num_accepted": [2 * (step % 4 == 3) for step in steps],
    }
    assert {"start_s", *wanted} == set(GROUP_COLUMNS)
    for name, values in wanted.items():
        assert group_column(groups, name).tolist() == values, name


def test_no_step_is_a_column_without_elements() -> None:
    assert [len(Groups().column(name)) for name in ("start_s", "used_blocks")] == [0, 0]


def test_rows_that_are_made_ahead_are_those_made_one_by_one() -> None:
    """Behind rows that went to a sink, too."""
    ahead, alone = Columns(rows_at_once=64), Columns()
    for columns in (ahead, alone):
        for number in range(150):
            row = columns.add(f"r{number}", number / 8, 10, None)
            columns.finish_s[row] = number
            if number == 99:
                columns.drop(70)
        columns.trim()
        assert len(columns) == 80 and all(len(column) == 80 for column in columns.stored())
    assert repr(ahead.stored()) == repr(alone.stored())
    assert math.isnan(ahead.first_token_s[79]) and ahead.finish_s[79] == 149
