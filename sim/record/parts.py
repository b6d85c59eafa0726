"""A run that went on beyond a boundary, as the two batches that it stands for."""

from collections.abc import Iterator

from actors.core.batch import Batch
from actors.messages import StepOutput


def parts(output: StepOutput) -> Iterator[StepOutput]:
    """The output as it would have been told for each part of a run; nearly always the output itself.

    What came of the run came with its last part.
    """
    if not output.waited:
        yield output
        return
    batch, start_s, done = output.batch, output.start_s, 0
    for until, num_waiting, num_free_blocks in output.waited:
        yield _part(output, batch, (start_s, done, until), num_waiting, num_free_blocks)
        batch = Batch(output.batch.step + until, num_decodes=output.batch.num_decodes)
        start_s, done = output.end_times_s[until - 1], until
    last = _part(
        output, batch, (start_s, done, len(output.end_times_s)), output.num_waiting, output.num_free_blocks
    )
    last.finished, last.ranks, last.kv_events = output.finished, output.ranks, output.kv_events
    yield last


def _part(
    output: StepOutput, batch: Batch, span: tuple[float, int, int], num_waiting: int, num_free_blocks: int
) -> StepOutput:
    start_s, first, stop = span
    return StepOutput(
        replica=output.replica,
        batch=batch,
        start_s=start_s,
        end_times_s=output.end_times_s[first:stop],
        tokens=None,
        finished=(),
        num_running=output.num_running,
        num_waiting=num_waiting,
        num_free_blocks=num_free_blocks,
        blocked=output.blocked,
        num_free_blocks_planned=output.num_free_blocks_planned,
        num_waiting_planned=output.num_waiting_planned,
    )
