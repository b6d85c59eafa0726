"""What clients add to the figures of a run that they saw: how late they were, and what went wrong."""

import numpy as np

from actors.core.records import dataclass
from sim.figures.statistics.distribution import Distribution, distribution
from sim.record.client_record import ClientRecord


@dataclass(frozen=True, slots=True)
class ClientFigures:
    """`lateness_s` is how much later than due requests were sent: the client's own doing, and part of TTFT.

    `errors` counts requests by the kind of their trouble, refusals and timeouts among them; `said` has the
    first words of each kind. A refusal asked to wait `retry_after_s` at most.
    """

    model: str
    """As the server calls it."""
    lateness_s: Distribution | None
    tokens_per_chunk: float | None
    errors: dict[str, int]
    said: dict[str, str]
    retry_after_s: float | None

    @classmethod
    def of(cls, record: ClientRecord) -> "ClientFigures":
        columns = record.columns
        late_s = np.array(columns.sent_s) - np.array(columns.arrival_s)
        num_tokens = sum(columns.num_output_tokens)
        return cls(
            record.model,
            distribution(np.maximum(late_s[~np.isnan(late_s)], 0.0)),
            num_tokens / record.num_chunks if record.num_chunks else None,
            dict(record.errors.most_common()),
            dict(record.said),
            record.retry_after_s,
        )
