"""Row of a trace as clients need it, and the outcome of each request."""

import math
from array import array
from dataclasses import dataclass, field
from typing import Literal, Protocol

End = Literal["stop", "length", "refused", "abort", "error"]
"""End of a request: complete (stop, length), refused with 429, given up by its client, or broken."""


class Row(Protocol):
    """Request of a trace; see `sundog.sim.trace.record.TraceRequest`."""

    @property
    def request_id(self) -> str: ...
    @property
    def arrival_s(self) -> float: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_output_tokens(self) -> int: ...
    @property
    def hash_ids(self) -> tuple[int, ...] | None: ...
    @property
    def hash_block_tokens(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def tenant(self) -> str | None: ...
    @property
    def session(self) -> str | None: ...
    @property
    def after(self) -> tuple[str, ...]: ...
    @property
    def pause_s(self) -> float: ...
    @property
    def limits_s(self) -> tuple[float | None, float | None, float | None]: ...


@dataclass(slots=True)
class Outcome:
    """Client's record of one request; seconds since the run began, NaN for what never came.

    It was due at `due_s`, sent from `sent_s` to `written_s`, and ended with its last chunk, or when it broke
    or was given up. `gaps_s` lie between chunks of the answer; a chunk may hold several tokens. The server
    reported `num_prompt_tokens` and `num_cached_tokens`; if it did not, they are None, and
    `num_output_tokens` counts chunks.
    """

    due_s: float
    sent_s: float = math.nan
    written_s: float = math.nan
    first_s: float = math.nan
    last_s: float = math.nan
    end_s: float = math.nan
    num_prompt_tokens: int | None = None
    num_output_tokens: int = 0
    num_cached_tokens: int | None = None
    num_chunks: int = 0
    gaps_s: "array[float]" = field(default_factory=lambda: array("d"))
    end: End | None = None
    trouble: str | None = None
    """Kind of the error, if there was one."""
    reason: str = ""
    """First words of the server's message."""
    retry_after_s: float | None = None

    def chunk(self, now_s: float) -> None:
        """Record the arrival of a chunk of the answer."""
        if self.num_chunks:
            self.gaps_s.append(now_s - self.last_s)
        else:
            self.first_s = now_s
        self.last_s = now_s
        self.num_chunks += 1

    def chunks_were(self, times_s: "array[float]") -> None:
        """Keep only the chunks at these times, because the others contained no tokens."""
        self.num_chunks, self.gaps_s = 0, array("d")
        for time_s in times_s:
            self.chunk(time_s)
