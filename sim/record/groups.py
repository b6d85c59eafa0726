"""What the steps of one replica were made of: a row of numbers for each group of equal steps."""

from struct import Struct

from actors.messages import StepOutput

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
    "used_blocks",
    "num_drafts",
    "num_accepted",
    "num_first_intervals",
    "num_intervals",
    "num_last_intervals",
)

_ROW = Struct(f"d{len(GROUP_COLUMNS) - 1}q")
_PACKED = _ROW.pack


class Groups:
    """What the steps of a replica were made of, a row for each batch: `num_steps` equal steps.

    `start_s` is when the first of them began. Waiting requests are counted during all steps but the last, and
    at its end; `used_blocks` are in use then, or -1 where `KvUse` takes no sample. Intervals are those
    between two tokens of a request that end with the first, any other, and the last step.
    The rows lie packed one after another, to which a batch is added at once.
    """

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows = bytearray()

    def __len__(self) -> int:
        return len(self._rows) // _ROW.size

    def column(self, name: str) -> "memoryview[int] | memoryview[float]":
        """One of `GROUP_COLUMNS`, a number for each row: of type d if it is the first, else q."""
        place = GROUP_COLUMNS.index(name)
        return memoryview(bytes(self._rows)).cast("q" if place else "d")[place :: len(GROUP_COLUMNS)]

    def add(
        self, output: StepOutput, num_prefilled: int, used_blocks: int, num_intervals: tuple[int, int, int]
    ) -> None:
        """The steps of one output; intervals with the first, any other and the last of them."""
        batch, (num_first, num_other, num_last) = output.batch, num_intervals
        start_s, num_steps, num_waiting = output.start_s, len(output.end_times_s), output.num_waiting_planned
        if output.waited:
            start_s, num_steps, num_waiting, num_first = self._add_before(output, num_first, num_other)
        self._rows += _PACKED(
            start_s,
            num_steps,
            batch.num_decodes,
            len(batch.chunks),
            num_prefilled,
            len(batch.preempted),
            len(output.finished),
            num_waiting,
            output.num_waiting,
            used_blocks,
            batch.num_draft_tokens,
            sum([count for _, count in output.accepted]) if output.accepted else 0,
            num_first,
            num_other,
            num_last,
        )

    def _add_before(self, output: StepOutput, num_first: int, num_other: int) -> tuple[float, int, int, int]:
        """A row for the steps of a run until more requests wait, and one for each later time.

        Returns what is left: its start, its number of steps, how many wait, and the first's intervals.
        """
        ends_s, done = output.end_times_s, 0
        start_s, num_waiting = output.start_s, output.num_waiting_planned
        for until, num_waiting_then, _ in output.waited:
            count, num_last = until - done, num_first if until - done == 1 else num_other
            self._rows += _PACKED(
                start_s,
                count,
                output.batch.num_decodes,
                0,
                0,
                0,
                0,
                num_waiting,
                num_waiting_then,
                -1,
                0,
                0,
                num_first,
                num_other,
                num_last,
            )
            start_s, done, num_waiting, num_first = ends_s[until - 1], until, num_waiting_then, num_other
        return start_s, len(ends_s) - done, num_waiting, num_first
