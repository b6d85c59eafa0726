"""Messages between a door process and the server.

A client's request is sent as a `Generate`, its answer as deltas, those of a step in one frame. What every
door must do is sent as an `Order`.
"""

from dataclasses import dataclass
from typing import Literal

from sundog.actors.kernel.stream import Delta
from sundog.actors.messages import (
    Cancel,
    ChangeAdapters,
    CheckHealth,
    Done,
    Drain,
    Freeze,
    Generate,
    Health,
    Refused,
    ResetPrefixCache,
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A door submits a request; its streams have consecutive numbers from `first_stream`, chosen by the
    door.
    """

    first_stream: int
    generate: Generate

    def answered_by(self, answer: "Taken | Refused") -> "Asked":
        """Return the message with its reply type, for the type checker."""
        return self


@dataclass(frozen=True, slots=True)
class Taken:
    """The graph has accepted a door's request (`Accepted`): its streams begin."""

    num_prompt_tokens: int
    may_be_refused: bool
    prompt_token_ids: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class StreamNews:
    """New output of one stream: its unread deltas, merged."""

    stream: int
    delta: Delta


@dataclass(frozen=True, slots=True)
class Deltas:
    """New output of all of a door's streams, from the server."""

    parts: tuple[StreamNews, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """A door requests data of the server: /metrics in the `accept` format, the page's event, or keys."""

    what: Literal["metrics", "live", "keys"]
    accept: str

    def answered_by(self, answer: "Fetched") -> "Fetch":
        """Return the message with its reply type, for the type checker."""
        return self


@dataclass(frozen=True, slots=True)
class Fetched:
    """Fetched content and its type."""

    content: bytes
    content_type: str


@dataclass(frozen=True, slots=True)
class Answered:
    """A door reports a finished HTTP request, for /metrics."""

    method: str
    status: str
    handler: str
    num_bytes_in: int
    num_bytes_out: int
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Order:
    """Operator's order: a door sends it to the server, and the server to all doors.

    The answer is a number, summed over all doors: of aborted or of unfinished answers. `hold` pauses new
    answers, `release` resumes, `wait` returns when none is unfinished, `keys` when the door has reloaded the
    keys.
    """

    what: Literal["abort", "hold", "release", "wait", "count", "keys"]
    answer_ids: tuple[str, ...] | None = None

    def answered_by(self, answer: "Number") -> "Order":
        """Return the message with its reply type, for the type checker."""
        return self


@dataclass(frozen=True, slots=True)
class AcquireLimit:
    """Count of one more answer for `whose`, requested by a door; `most` is the limit over all doors
    (`ConcurrencyLimits`).
    """

    ticket: int
    """Number by which the door releases the count."""
    whose: str
    most: int | None

    def answered_by(self, answer: "LimitAcquired") -> "AcquireLimit":
        """Return the message with its reply type, for the type checker."""
        return self


@dataclass(frozen=True, slots=True)
class LimitAcquired:
    """Reply to AcquireLimit: granted if `room_in_s` is None; otherwise the limit lasts for about that many
    seconds.
    """

    room_in_s: float | None


@dataclass(frozen=True, slots=True)
class ReleaseLimit:
    """Release of a count by a door, by its ticket, if the count was granted."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Number:
    """Answer to an order: a count."""

    number: int


@dataclass(frozen=True, slots=True)
class Ready:
    """A door accepts connections at this port."""

    port: int


@dataclass(frozen=True, slots=True)
class CannotListen:
    """A door cannot listen, with the reason."""

    why: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The server stops a door: refuse new requests, finish unfinished ones, and end."""


FromClient = Asked | Cancel | CheckHealth | ResetPrefixCache | Freeze | ChangeAdapters | Drain
ToServer = FromClient | Fetch | AcquireLimit | ReleaseLimit | Answered | Order | Ready | CannotListen
ToDoor = Deltas | Order | Stop

DOOR_MESSAGES: tuple[type, ...] = (
    *(
        Asked,
        Taken,
        Refused,
        Cancel,
        CheckHealth,
        Health,
        ResetPrefixCache,
        Freeze,
        ChangeAdapters,
        Drain,
        Done,
    ),
    *(
        Fetch,
        Fetched,
        AcquireLimit,
        LimitAcquired,
        ReleaseLimit,
        Answered,
        Order,
        Number,
        Ready,
        CannotListen,
        Deltas,
        Stop,
    ),
)
