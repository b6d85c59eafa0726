"""Waits that only clients saw: how long they took, and how many other requests were under way.

Why the server let a request wait is in no client's record; the server's own journal has it.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sim.files.run_files import REQUESTS
from sim.record.run_directory import Run, open_run

UNKNOWN = "why a request waited is known to the server alone: record it with `sundog serve --record DIR`"


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """A request that a client saw; seconds, None for what never came.

    When it was due, `num_waiting` others had been sent and had no token yet, `num_streaming` had one.
    """

    request_id: str
    due_s: float
    sent_s: float | None
    first_token_s: float | None
    end_s: float | None
    reason: str | None
    error: str | None
    num_prompt_tokens: int
    num_output_tokens: int
    prefix_hit_tokens: int | None
    num_waiting: int
    num_streaming: int

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token_s is None else self.first_token_s - self.due_s

    @property
    def data(self) -> dict[str, Any]:
        return {**asdict(self), "ttft_s": self.ttft_s}


def seen_requests(run: Run) -> list[SeenRequest]:
    """The requests of a run that clients saw, in order of arrival. O(n log n)."""
    rows = run.requests().to_pylist()
    sent, first, end = (
        np.sort([row[name] for row in rows if row[name] is not None])
        for name in ("sent_s", "first_token_s", "finish_s")
    )
    no_token = np.sort(
        [row["finish_s"] for row in rows if row["first_token_s"] is None and row["finish_s"] is not None]
    )

    def before(instants: Any, due_s: float) -> int:
        return int(np.searchsorted(instants, due_s))

    found = []
    for row in rows:
        due_s = row["arrival_s"]
        ended_bare = before(no_token, due_s)
        found.append(
            SeenRequest(
                row["request_id"],
                due_s,
                row["sent_s"],
                row["first_token_s"],
                row["finish_s"],
                row["reason"],
                row["error"],
                row["num_prompt_tokens"],
                row["num_output_tokens"],
                row["prefix_hit_tokens"],
                num_waiting=max(before(sent, due_s) - before(first, due_s) - ended_bare, 0),
                num_streaming=max(before(first, due_s) - before(end, due_s) + ended_bare, 0),
            )
        )
    return found


def longest_waits(requests: list[SeenRequest], top: int) -> list[SeenRequest]:
    """Sort out the `top` requests whose first token took longest, the longest first."""
    waited = [request for request in requests if request.ttft_s is not None]
    return sorted(waited, key=lambda request: -(request.ttft_s or 0.0))[:top]


@dataclass(frozen=True, slots=True)
class RefusedAtDoor:
    """It came at `arrival_s`, and `refusal` says why it was turned away."""

    request_id: str
    arrival_s: float
    num_prompt_tokens: int
    tenant: str | None
    refusal: str

    @property
    def data(self) -> dict[str, object]:
        """For programs: the fields, and how it ended."""
        return {**asdict(self), "reason": "refused"}

    def __str__(self) -> str:
        return (
            f"Request {self.request_id} arrived at {self.arrival_s:,.3f} s and was refused at the door:"
            f" {self.refusal}"
        )


def refused_at_door(record: Path, request_id: str) -> RefusedAtDoor | None:
    """The request, if the run in the folder turned it away; O(requests)."""
    if not (record / REQUESTS).is_file():
        return None
    import pyarrow.compute as pc

    requests = open_run(record).requests()
    if "refusal" not in requests.column_names:
        return None
    found = requests.filter(pc.equal(requests["request_id"], request_id)).to_pylist()
    rows = [row for row in found if row["refusal"] is not None]
    if not rows:
        return None
    row = rows[0]
    return RefusedAtDoor(
        request_id, row["arrival_s"], row["num_prompt_tokens"], row["tenant"], row["refusal"]
    )
