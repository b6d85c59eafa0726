"""Columns that a Recorder keeps: a row per request, and a row per group of steps."""

import math
import re
from array import array
from dataclasses import dataclass, field
from struct import Struct

from sundog.actors.messages import StepOutput

Blocks = tuple[int, int, int]
"""The blocks in use when a step that prefills began and had taken none, -1 of any other; those that the step
held until it ended; and those left when what had ended was released."""
NO_SAMPLE: Blocks = (-1, -1, -1)


def blocks_of(output: StepOutput, num_blocks: int) -> Blocks:
    """The blocks of the output's last step, of a pool of `num_blocks` without the null one."""
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
    """The integral of blocks in use, and the most of them.

    Blocks are in use from the beginning of the step for which they were taken, until the end of the last
    that held them. While no step runs the use stands still.
    """

    def __init__(self) -> None:
        self._used = 0
        self._since_s = self._last_end_s = math.nan
        self.block_seconds = 0.0
        self.max_blocks = 0

    def stepped(self, start_s: float, end_s: float, blocks: Blocks) -> None:
        """Note that steps ran from `start_s` to `end_s`; the blocks are those of the last."""
        if math.isnan(self._since_s):
            self._since_s = self._last_end_s = start_s
        elif start_s > self._last_end_s:
            self._grow(self._used, start_s)
        before, held, after = blocks
        if held >= 0:
            if before >= 0:
                self._grow(before, max(start_s, self._last_end_s))
                self._used = held
            self._grow(held, end_s)
            self._used = after
            self.max_blocks = max(self.max_blocks, held)
        self._last_end_s = end_s

    def _grow(self, num_blocks: int, until_s: float) -> None:
        span_s = until_s - self._since_s
        self.block_seconds += (self._used + num_blocks) / 2 * span_s
        self._since_s, self._used = until_s, num_blocks


Limits = tuple[float | None, float | None, float | None]
"""The limits that a request has for TTFT, TPOT and E2E, in seconds."""
ABSENT = math.nan
"""An instant that never came, in the columns of times."""


class Columns:
    """A row per request that arrived, in order of arrival; seconds, tokens and counts.

    `replica` is -1 until the first admission. A request still running has no `reason`.
    """

    def __init__(self) -> None:
        self.request_id: list[str] = []
        self.tenant: list[str | None] = []
        self.reason: list[str | None] = []
        self.limits_s: dict[str, Limits] = {}
        """The limits of each request that has any."""
        self.refusals: dict[str, str] = {}
        """The reason of each request that was refused."""
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
        """A new row; returns its index."""
        self.request_id.append(request_id)
        self.tenant.append(tenant)
        self.reason.append(None)
        self.arrival_s.append(arrival_s)
        self.num_prompt_tokens.append(num_prompt_tokens)
        self.first_scheduled_s.append(ABSENT)
        self.first_token_s.append(ABSENT)
        self.finish_s.append(ABSENT)
        self.num_output_tokens.append(0)
        self.num_preemptions.append(0)
        self.prefix_hit_tokens.append(0)
        self.recomputed_tokens.append(0)
        self.replica.append(-1)
        return len(self.request_id) - 1

    def drop(self, count: int) -> None:
        """Forget the first `count` rows."""
        if self.limits_s or self.refusals:
            for name in self.request_id[:count]:
                self.limits_s.pop(name, None)
                self.refusals.pop(name, None)
        for column in self.stored():
            del column[:count]

    def stored(self) -> "list[list[str] | list[str | None] | array[float] | array[int]]":
        """List the columns that have an element for each request."""
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
    """Columns of a run whose requests may go from one replica to another: how often each did.

    `stopped_s` is how long it stood still for it: from its last step on one replica to its next on another.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num_moves = array("q")
        self.stopped_s = array("d")
        self.num_all = self.num_whole = 0
        """The numbers of all moves, and of those with all blocks."""
        self.total_stopped_s = 0.0

    def add(self, request_id: str, arrival_s: float, num_prompt_tokens: int, tenant: str | None) -> int:
        self.num_moves.append(0)
        self.stopped_s.append(0.0)
        return super().add(request_id, arrival_s, num_prompt_tokens, tenant)

    def stored(self) -> "list[list[str] | list[str | None] | array[float] | array[int]]":
        return [*super().stored(), self.num_moves, self.stopped_s]

    def left(self, row: int, is_whole: bool) -> None:
        """A request has left its replica, with all blocks or to be computed again."""
        self.num_moves[row] += 1
        self.num_all += 1
        self.num_whole += is_whole

    def stood_still(self, row: int, seconds: float) -> None:
        """A request that left while it ran goes on."""
        self.stopped_s[row] += seconds
        self.total_stopped_s += seconds


MOVED = ("num_moves", "stopped_s")
"""The columns that such a run has beside the others."""


MOST_REASONS = 20
"""Reasons that are told apart; the others are counted together."""
OTHERS = "for other reasons"
NUMBERS = re.compile(r"\d[\d,.]*")


def kind_of(reason: str) -> str:
    """The reason without its numbers."""
    return NUMBERS.sub("#", reason)


@dataclass(slots=True)
class Refusals:
    """`counts` by reason; reasons that differ by their numbers alone are one, in the words of the first."""

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
        """The number of refusals for all reasons."""
        return sum(self.counts.values())


GROUP_COLUMNS = (
    "start_s",
    "num_steps",
    "num_decodes",
    "num_prefills",
    "num_prefill_tokens",
    "num_preempted",
    "num_finished",
    "num_waiting",
    "num_waiting_at_end",
    "used_blocks_before",
    "used_blocks",
    "used_blocks_after",
    "num_drafts",
    "num_accepted",
    "num_first_intervals",
    "num_intervals",
    "num_last_intervals",
)

_ROW = Struct(f"d{len(GROUP_COLUMNS) - 1}q")
_PACKED = _ROW.pack


class Groups:
    """Contents of the steps of a replica, a row for each batch: `num_steps` equal steps.

    `start_s` is when the first of them began. Waiting requests are counted during all steps but the last, and
    at its end; the three `used_blocks…` are the `Blocks` of that step, -1 where there are none. Intervals are
    those between two tokens of a request that end with the first, any other, and the last step.
    The rows lie packed one after another, to which a batch is added at once.
    """

    def __init__(self) -> None:
        self._rows = bytearray()

    def __len__(self) -> int:
        return len(self._rows) // _ROW.size

    def column(self, name: str) -> "memoryview[int] | memoryview[float]":
        """View one of `GROUP_COLUMNS`, of type d if it is the first, else q; copy it at once."""
        place = GROUP_COLUMNS.index(name)
        return memoryview(self._rows).cast("q" if place else "d")[place :: len(GROUP_COLUMNS)]

    def add(
        self, output: StepOutput, num_prefilled: int, blocks: Blocks, num_intervals: tuple[int, int, int]
    ) -> None:
        """The steps of one output; intervals with the first, any other and the last of them."""
        batch, (num_first, num_other, num_last) = output.batch, num_intervals
        before, held, after = blocks
        self._rows += _PACKED(
            output.start_s,
            len(output.end_times_s),
            batch.num_decodes,
            len(batch.chunks),
            num_prefilled,
            len(batch.preempted),
            len(output.finished),
            output.num_waiting_planned,
            output.num_waiting,
            before,
            held,
            after,
            batch.num_draft_tokens,
            sum([count for _, count in (*output.accepted, *output.surplus)]) if output.accepted else 0,
            num_first,
            num_other,
            num_last,
        )


class StepColumns:
    """The steps of one replica; `end_s` and `groups` those that are still in memory.

    `before_s` is when the step before these ended. `gaps_s` are the intervals between tokens that
    span idle steps or a preemption; `busy_s` the time in which any step ran, overlaps once.
    """

    def __init__(self) -> None:
        self.end_s = array("d")
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


class LiveColumns:
    """A request that has not ended: its row, and the range of steps that is open, if any.

    `first_s` is the time of the open range's first token, `last_s` of the last range's last one.
    """

    def __init__(self, row: int) -> None:
        self.row = row
        self.computed_tokens = 0
        self.lost_tokens = 0
        self.start: int | None = None
        self.is_open = False
        """True if `StepColumns.num_open` counts it."""
        self.is_handed = False
        """True if its prompt was computed on another replica."""
        self.first_s = ABSENT
        self.last_s = ABSENT
        self.stopped_since_s = ABSENT
        """The time at which it left a replica on which it ran, until it runs on another."""
