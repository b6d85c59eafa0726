"""Columns of a Recorder: a row per request, and a row per group of steps."""

import math
import re
from array import array
from collections.abc import Sequence
from dataclasses import field
from struct import Struct, pack
from typing import Final

from sundog.actors.core.records import dataclass
from sundog.actors.messages import StepOutput

Blocks = tuple[int, int, int]
"""Blocks in use at the begin of a step with prefills, before its allocations, -1 for other steps; blocks
held by the step until its end; and blocks left after releases.
"""
NO_SAMPLE: Final[Blocks] = (-1, -1, -1)


def blocks_of(output: StepOutput, num_blocks: int) -> Blocks:
    """Return the blocks of the output's last step, of a pool of `num_blocks` without the null one."""
    chunks = output.batch.chunks
    if not (chunks or output.finished):
        return NO_SAMPLE
    free = output.num_free_blocks_held
    if free is None:
        free = output.num_free_blocks
    held = num_blocks - free
    before = max(held - output.num_taken_blocks, 0) if chunks else -1
    return before, held, held - output.num_freed_blocks


class KvUse:
    """Blocks in use, integrated over time, and their maximum.

    Blocks are in use from the begin of the step for which they were allocated, until the end of the last that
    held them. Between steps the use is constant.
    """

    def __init__(self) -> None:
        self._used = 0
        self._has_begun = False
        self._since_s = self._last_end_s = 0.0
        self.block_seconds = 0.0
        self.max_blocks = 0

    def stepped(self, start_s: float, end_s: float, blocks: Blocks) -> None:
        """Record steps that ran from `start_s` to `end_s`; the blocks are those of the last step."""
        if not self._has_begun:
            self._has_begun = True
            self._since_s = self._last_end_s = start_s
        elif start_s > self._last_end_s:
            self._grow(self._used, start_s)
        before, held, after = blocks
        if held >= 0:
            if before >= 0:
                self._grow(before, start_s if start_s > self._last_end_s else self._last_end_s)
                self._used = held
            self._grow(held, end_s)
            self._used = after
            if held > self.max_blocks:
                self.max_blocks = held
        self._last_end_s = end_s

    def _grow(self, num_blocks: int, until_s: float) -> None:
        span_s = until_s - self._since_s
        self.block_seconds += (self._used + num_blocks) / 2 * span_s
        self._since_s, self._used = until_s, num_blocks


Limits = tuple[float | None, float | None, float | None]
"""Limits of a request for TTFT, TPOT and E2E, in seconds."""
ABSENT = math.nan
"""Time of an event that never happened."""
# An array takes an element from another array in half of the time that a number takes.
_NO_TIME: Final = array("d", [ABSENT])
_ZERO: Final = array("q", [0])
_NOWHERE: Final = array("q", [-1])


class Columns:
    """Row per request that arrived, in order of arrival; seconds, tokens and counts.

    `replica` is -1 until the first admission. A running request has no `reason`.
    """

    def __init__(self, rows_at_once: int = 1) -> None:
        """With `rows_at_once` the columns of later values get rows ahead of the requests, until `trim`."""
        self._rows_at_once, self._num_made = rows_at_once, 0
        self.request_id: list[str] = []
        self.tenant: list[str | None] = []
        self.reason: list[str | None] = []
        self.limits_s: dict[str, Limits] = {}
        """Limits of each request that has any."""
        self.refusals: dict[str, str] = {}
        """Reason of each refused request."""
        self.arrival_s = array("d")
        self.first_scheduled_s = array("d")
        self.first_token_s = array("d")
        self.finish_s = array("d")
        self.num_prompt_tokens = array("q")
        self.num_output_tokens = array("q")
        self.num_preemptions = array("q")
        self.prefix_hit_tokens = array("q")
        self.recomputed_tokens = array("q")
        self.replica = array("q")

    def __len__(self) -> int:
        return len(self.request_id)

    def add(self, request_id: str, arrival_s: float, num_prompt_tokens: int, tenant: str | None) -> int:
        """Add a row; return its index."""
        self.request_id.append(request_id)
        self.tenant.append(tenant)
        self.reason.append(None)
        self.arrival_s.append(arrival_s)
        self.num_prompt_tokens.append(num_prompt_tokens)
        row = len(self.request_id) - 1
        if row >= self._num_made:
            self._make_rows()
        return row

    def _make_rows(self) -> None:
        count = self._rows_at_once
        self._num_made += count
        self.first_scheduled_s.extend(_NO_TIME * count)
        self.first_token_s.extend(_NO_TIME * count)
        self.finish_s.extend(_NO_TIME * count)
        self.num_output_tokens.extend(_ZERO * count)
        self.num_preemptions.extend(_ZERO * count)
        self.prefix_hit_tokens.extend(_ZERO * count)
        self.recomputed_tokens.extend(_ZERO * count)
        self.replica.extend(_NOWHERE * count)

    def trim(self) -> None:
        """Remove rows without a request."""
        self._num_made = len(self)
        for column in self.stored():
            del column[self._num_made :]

    def drop(self, count: int) -> None:
        """Remove the first `count` rows."""
        self._num_made -= count
        if self.limits_s or self.refusals:
            for name in self.request_id[:count]:
                self.limits_s.pop(name, None)
                self.refusals.pop(name, None)
        for column in self.stored():
            del column[:count]

    def stored(self) -> "list[list[str] | list[str | None] | array[float] | array[int]]":
        """Return the columns, each with one element per request once they are trimmed."""
        return [
            self.request_id,
            self.tenant,
            self.reason,
            self.arrival_s,
            self.first_scheduled_s,
            self.first_token_s,
            self.finish_s,
            self.num_prompt_tokens,
            self.num_output_tokens,
            self.num_preemptions,
            self.prefix_hit_tokens,
            self.recomputed_tokens,
            self.replica,
        ]


class MovedColumns(Columns):
    """Columns of a run whose requests may move between replicas, with their numbers of moves.

    `stopped_s` is the time that moves stopped it: from its last step on one replica to its next on another.
    """

    def __init__(self, rows_at_once: int = 1) -> None:
        super().__init__(rows_at_once)
        self.num_moves = array("q")
        self.stopped_s = array("d")
        self.num_all = self.num_whole = 0
        """Numbers of all moves, and of those with all blocks."""
        self.total_stopped_s = 0.0

    def add(self, request_id: str, arrival_s: float, num_prompt_tokens: int, tenant: str | None) -> int:
        self.num_moves.append(0)
        self.stopped_s.append(0.0)
        return super().add(request_id, arrival_s, num_prompt_tokens, tenant)

    def stored(self) -> "list[list[str] | list[str | None] | array[float] | array[int]]":
        return [*super().stored(), self.num_moves, self.stopped_s]

    def left(self, row: int, is_whole: bool) -> None:
        """Record that a request left its replica: with all its blocks, or to be recomputed."""
        self.num_moves[row] += 1
        self.num_all += 1
        self.num_whole += is_whole

    def stood_still(self, row: int, seconds: float) -> None:
        """Record that a request continues which was moved while it ran, and for how many seconds it
        stopped.
        """
        self.stopped_s[row] += seconds
        self.total_stopped_s += seconds


MOVED = ("num_moves", "stopped_s")
"""Additional columns of a run whose requests may move."""


MOST_REASONS = 20
"""Number of distinct reasons; the others are counted together."""
OTHERS = "for other reasons"
NUMBERS = re.compile(r"\d[\d,.]*")


def kind_of(reason: str) -> str:
    """Return a reason without the numbers in it."""
    return NUMBERS.sub("#", reason)


@dataclass(slots=True)
class Refusals:
    """`counts` by reason; reasons that differ only in numbers are merged under the first one's text."""

    counts: dict[str, int] = field(default_factory=dict)
    _first: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str) -> None:
        """Count one more refusal for this reason."""
        kind = kind_of(reason)
        if kind not in self._first and len(self._first) >= MOST_REASONS:
            reason = kind = OTHERS
        reason = self._first.setdefault(kind, reason)
        self.counts[reason] = self.counts.get(reason, 0) + 1

    @property
    def total(self) -> int:
        """Number of refusals for all reasons."""
        return sum(self.counts.values())


_OFTEN = (
    "start_s",
    "num_steps",
    "num_decodes",
    "num_waiting",
    "num_waiting_at_end",
    "num_first_intervals",
    "num_intervals",
    "num_last_intervals",
)
"""Columns of all steps. In steps that only decode on, the others are 0."""
_SELDOM = (
    "num_prefills",
    "num_prefill_tokens",
    "num_finished",
    "used_blocks_before",
    "used_blocks",
    "used_blocks_after",
)
_RARE = ("num_preempted", "num_drafts", "num_accepted")
GROUP_COLUMNS = (*_OFTEN, *_SELDOM, *_RARE)
USED = ("used_blocks_before", "used_blocks", "used_blocks_after")
"""Columns of the `Blocks` of a step, which are stored plus 1: 0 if missing."""

_COLUMN_BYTES: Final = 8
_ROW_BYTES: Final = len(GROUP_COLUMNS) * _COLUMN_BYTES
_PACK_OFTEN: Final = Struct(f"d{len(_OFTEN) - 1}q").pack_into
_PACK_SELDOM: Final = Struct(f"{len(_SELDOM)}q").pack_into
_PACK_RARE: Final = Struct(f"{len(_RARE)}q").pack_into
_SELDOM_AT: Final = len(_OFTEN) * _COLUMN_BYTES
_RARE_AT: Final = _SELDOM_AT + len(_SELDOM) * _COLUMN_BYTES
_PART_BYTES: Final = 256 * _ROW_BYTES
"""Size of the parts in which the memory for groups grows, so that it is never copied."""


class Groups:
    """Contents of the steps of a replica, a row for each batch: `num_steps` equal steps.

    `start_s` is when the first of them began. Waiting requests are counted during all steps but the last, and
    at its end; the three `used_blocks…` are the `Blocks` of that step. Intervals are those between two tokens
    of a request that end with the first, any other, and the last step. The rows are packed one after another
    into zeros, so that adding a batch is fast.
    """

    def __init__(self) -> None:
        self._full: list[bytearray] = []
        self._part = bytearray(_PART_BYTES)
        self._num_bytes = 0
        """Length of the rows in the last part; behind them is room for more."""

    def __len__(self) -> int:
        return (len(self._full) * _PART_BYTES + self._num_bytes) // _ROW_BYTES

    def column(self, name: str) -> "array[float] | array[int]":
        """Copy one of `GROUP_COLUMNS`, of type d if it is the first, else q."""
        place, num_columns = GROUP_COLUMNS.index(name), len(GROUP_COLUMNS)
        column: array[float] | array[int] = array("q") if place else array("d")
        for part in (*self._full, self._part):
            rows = memoryview(part).cast("q")
            column.frombytes(rows[place::num_columns].tobytes())
        del column[len(self) :]
        return column

    def add(
        self,
        output: StepOutput,
        num_steps: int,
        num_prefilled: int,
        blocks: Blocks,
        num_first_intervals: int,
        num_intervals: int,
        num_last_intervals: int,
    ) -> None:
        """Add the steps of one output."""
        batch, place, finished = output.batch, self._num_bytes, output.finished
        if place == _PART_BYTES:
            self._full.append(self._part)
            self._part, place = bytearray(_PART_BYTES), 0
        self._num_bytes = place + _ROW_BYTES
        rows = self._part
        _PACK_OFTEN(
            rows,
            place,
            output.start_s,
            num_steps,
            batch.num_decodes,
            output.num_waiting_planned,
            output.num_waiting,
            num_first_intervals,
            num_intervals,
            num_last_intervals,
        )
        before, held, after = blocks
        if batch.chunks or finished or held >= 0:
            _PACK_SELDOM(
                rows,
                place + _SELDOM_AT,
                len(batch.chunks),
                num_prefilled,
                len(finished),
                before + 1,
                held + 1,
                after + 1,
            )
        if batch.preempted or batch.drafts or output.accepted:
            num_accepted = 0
            if output.accepted:
                num_accepted = sum([count for _, count in (*output.accepted, *output.surplus)])
            _PACK_RARE(rows, place + _RARE_AT, len(batch.preempted), batch.num_draft_tokens, num_accepted)


MANY_ENDS: Final = 96
"""Number of steps from which a run's end times are an array (`sundog.sim.backend`)."""
ENDS_AT_ONCE: Final = 512


class StepColumns:
    """Steps of one replica; `end_s` and `groups` are those still in memory, of `num_kept` steps.

    `before_s` is the end of the step before these. `gaps_s` are the intervals between tokens that span idle
    steps or a preemption; `busy_s` the time in which any step ran, overlaps once.
    """

    def __init__(self) -> None:
        self._end_s = array("d")
        self._new_end_s: list[float] = []
        """The latest elements of `end_s`, since an array takes many at once in a third of the time."""
        self._room = ENDS_AT_ONCE
        self.groups = Groups()
        self.gaps_s = array("d")
        self.before_s = 0.0
        self.busy_s = 0.0
        self.last_end_s = 0.0
        self.num_batched_tokens = 0
        self.num_steps = 0
        self.num_open = 0
        """Ranges with a token in the last step."""
        self.restarting: list[LiveColumns] = []
        """Ranges whose successor begins with the next step."""

    @property
    def end_s(self) -> "array[float]":
        """End of each step."""
        self._settle()
        return self._end_s

    def _settle(self) -> None:
        if self._new_end_s:
            self._end_s.frombytes(pack(f"{len(self._new_end_s)}d", *self._new_end_s))
            self._new_end_s.clear()
        self._room = ENDS_AT_ONCE

    @property
    def num_kept(self) -> int:
        """Number of steps in memory."""
        return len(self._end_s) + len(self._new_end_s)

    def ended(self, end_times_s: Sequence[float], num_ended: int) -> None:
        """Add `num_ended` steps."""
        if num_ended >= MANY_ENDS:
            self.end_s.extend(end_times_s)
            return
        self._new_end_s += end_times_s
        self._room -= num_ended
        if self._room <= 0:
            self._settle()

    def drop(self) -> None:
        """Remove all steps, which are kept elsewhere."""
        self.before_s = self.last_end_s
        self._end_s, self.groups, self.gaps_s = array("d"), Groups(), array("d")
        self._new_end_s.clear()


class LiveColumns:
    """Unfinished request: its row, and the open range of steps, if any.

    `first_s` is the time of the open range's first token, `last_s` of the last range's last one.
    """

    def __init__(self, row: int) -> None:
        self.row = row
        self.computed_tokens = 0
        self.lost_tokens = 0
        self.start: int | None = None
        self.is_open = False
        """Whether its range of steps is open, and so counted in `StepColumns.num_open`."""
        self.is_handed = False
        """Whether its prompt was computed on another replica."""
        self.first_s = ABSENT
        self.last_s = ABSENT
        self.stopped_since_s = ABSENT
        """Time at which it left a replica while running, until it runs on another."""
