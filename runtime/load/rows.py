"""The clients' view of a row of a trace, and the outcome of each request."""

import math
from array import array
from dataclasses import dataclass, field
from typing import Literal, Protocol

End = Literal["stop", "length", "refused", "abort", "error"]
"""The end of a request: whole (stop, length), refused with 429, given up by its client, or broken."""


class Row(Protocol):
    """A request of a trace; see `sundog.sim.trace.record.TraceRequest`."""

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
    """The client's record of one request; seconds since the run began, NaN for what never came.

    It was due at `due_s`, sent at `sent_s`, and ended with its last chunk, or when it broke or was given up.
    `gaps_s` lie between chunks of the answer; a chunk may hold several tokens. The server counted
    `num_prompt_tokens` and `num_cached_tokens`, None where it did not; `num_output_tokens` are chunks then.
    """

    due_s: float
    sent_s: float = math.nan
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
    """The kind of the error, if there was one."""
    reason: str = ""
    """The first words of what the server said of it."""
    retry_after_s: float | None = None

    def chunk(self, now_s: float) -> None:
        """Note that one more part of the answer came."""
        if self.num_chunks:
            self.gaps_s.append(now_s - self.last_s)
        else:
            self.first_s = now_s
        self.last_s = now_s
        self.num_chunks += 1

    def chunks_were(self, times_s: "array[float]") -> None:
        """Note that only the chunks at these instants held tokens."""
        self.num_chunks, self.gaps_s = 0, array("d")
        for time_s in times_s:
            self.chunk(time_s)
