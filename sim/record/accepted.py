"""What drafts add to a record: tokens beside those that each step computes and gives."""

from actors.core.acceptance import Acceptance
from actors.messages import StepOutput
from sim.record.columns import Columns, Live, Steps


def add_drafts(
    output: StepOutput, acceptance: Acceptance, live: dict[str, Live], columns: Columns, steps: Steps
) -> None:
    """An accepted draft comes at the same instant as the token after it: between the two there is no time."""
    steps.num_batched_tokens += output.batch.num_draft_tokens
    acceptance.add(output.batch.drafts, output.accepted)
    for name, count in output.accepted:
        request = live.get(name)
        if request is not None and count:
            request.computed_tokens += count
            columns.num_output_tokens[request.row] += count
            steps.gaps_s.extend([0.0] * count)
