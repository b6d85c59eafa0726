"""Records of clients of a server: the rows of a run without known steps.

The columns are a Recorder's; what only the server knows is absent: when a request was first scheduled,
preemptions, the KV cache. Additional columns have when each was really sent, and errors.
"""

from array import array
from collections import Counter
from dataclasses import field
from typing import Any, Protocol

from sundog.actors.core.records import dataclass
from sundog.sim.record.columns import Columns, StepColumns
from sundog.sim.record.sink import Sink
from sundog.sim.trace.record import TraceRequest

UNKNOWN = -1
"""Count that is missing."""


class Seen(Protocol):
    """Client's record of one request; `sundog.runtime.load.rows.Outcome` describes the fields."""

    due_s: float
    sent_s: float
    first_s: float
    last_s: float
    end_s: float
    num_prompt_tokens: int | None
    num_output_tokens: int
    num_cached_tokens: int | None
    num_chunks: int
    gaps_s: "array[float]"
    trouble: str | None
    reason: str
    retry_after_s: float | None

    @property
    def end(self) -> str | None: ...


OWN = ("sent_s", "error")
"""Additional columns of clients' runs."""


class ClientColumns(Columns):
    """Columns with two additional ones."""

    def __init__(self) -> None:
        super().__init__()
        self.sent_s = array("d")
        self.error: list[str | None] = []

    def sort(self) -> None:
        """Sort the rows by arrival: requests that could not be sent are recorded later than others."""
        order = sorted(range(len(self)), key=self.arrival_s.__getitem__)
        columns: list[Any] = [*self.stored(), self.sent_s, self.error]
        for column in columns:
            ordered = [column[i] for i in order]
            column[:] = array(column.typecode, ordered) if isinstance(column, array) else ordered


@dataclass(slots=True)
class ClientRecord:
    """Recorder of requests as they become due and as they end, in seconds of the run's own time."""

    model: str = ""
    """Name of the model on the server."""
    columns: ClientColumns = field(default_factory=ClientColumns)
    gaps: StepColumns = field(default_factory=StepColumns)
    """Times between chunks of answers, as clients saw them."""
    num_chunks: int = 0
    retry_after_s: float | None = None
    """Longest retry delay of a refusal, in seconds."""
    errors: Counter[str] = field(default_factory=Counter)
    said: dict[str, str] = field(default_factory=dict)
    """Server's message of the first error of each kind."""
    until_s: float = 0.0
    """Time at which the last request ended."""
    cpu_shares: list[tuple[float, float]] = field(default_factory=list)
    """Core share of each client process: over the whole load, and in its busiest seconds."""
    _rows: dict[str, int] = field(default_factory=dict)

    @property
    def num_refused(self) -> int:
        return sum(reason == "refused" for reason in self.columns.reason)

    @property
    def hits(self) -> tuple[int, float] | None:
        """Prompt tokens that the server reports as cached, and their share; None if unreported."""
        columns = self.columns
        pairs = zip(columns.prefix_hit_tokens, columns.num_prompt_tokens, strict=True)
        known = [(hit, prompt) for hit, prompt in pairs if hit != UNKNOWN]
        hit_tokens, prompt_tokens = (sum(column) for column in zip(*known, strict=True)) if known else (0, 0)
        return (hit_tokens, hit_tokens / prompt_tokens) if prompt_tokens else None

    def due(self, row: TraceRequest, seen: Seen) -> None:
        """Record a request that is sent now, or could not be."""
        columns = self.columns
        index = columns.add(row.request_id, seen.due_s, row.num_prompt_tokens, row.tenant)
        for counts in (columns.num_preemptions, columns.recomputed_tokens, columns.prefix_hit_tokens):
            counts[index] = UNKNOWN
        columns.sent_s.append(seen.sent_s)
        columns.error.append(None)
        if any(limit_s is not None for limit_s in row.limits_s):
            columns.limits_s[row.request_id] = row.limits_s
        self._rows[row.request_id] = index

    def ended(self, row: TraceRequest, seen: Seen) -> None:
        """Record the end of a request."""
        columns, index = self.columns, self._rows.pop(row.request_id)
        columns.reason[index] = seen.end
        columns.first_token_s[index] = seen.first_s
        columns.finish_s[index] = seen.end_s
        columns.num_output_tokens[index] = seen.num_output_tokens
        if seen.num_prompt_tokens is not None:
            columns.num_prompt_tokens[index] = seen.num_prompt_tokens
        if seen.num_cached_tokens is not None:
            columns.prefix_hit_tokens[index] = seen.num_cached_tokens
        self.gaps.gaps_s.extend(seen.gaps_s)
        self.num_chunks += seen.num_chunks
        self.until_s = max(self.until_s, seen.end_s)
        if seen.trouble is not None:
            columns.error[index] = seen.trouble
            self.errors[seen.trouble] += 1
            if seen.reason:
                self.said.setdefault(seen.trouble, seen.reason)
            if seen.retry_after_s is not None:
                self.retry_after_s = max(self.retry_after_s or 0.0, seen.retry_after_s)

    def spill(self, sink: Sink | None) -> None:
        """Pass all rows to the sink, in order of arrival, at the end of the run."""
        self.columns.sort()
        if sink is not None:
            sink.steps(0, self.gaps)
            sink.requests(self.columns, len(self.columns), 0.0)
