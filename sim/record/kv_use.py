"""KV blocks in use over time, from what each step held.

Only steps that prefill or in which a request ends are samples, and all else is taken to grow evenly between
two of them, so that grouping other steps into runs changes nothing.
"""

import math

from actors.messages import StepOutput

Blocks = tuple[int, int, int]
"""Blocks in use when a step that prefills began and had taken none yet, -1 of any other; those that the step
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

    __slots__ = ("_last_end_s", "_since_s", "_used", "block_seconds", "max_blocks")

    def __init__(self) -> None:
        self._used = 0
        self._since_s = self._last_end_s = math.nan
        self.block_seconds = 0.0
        self.max_blocks = 0

    def stepped(self, start_s: float, end_s: float, blocks: Blocks) -> None:
        """Steps ran from `start_s` to `end_s`; the blocks are those of the last."""
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
