"""The messages between a door process and the server.

A question of a client's crosses as what the graph takes it for (`Generate`), its answer as deltas, those of a
step in one frame. What every door must do crosses as `Order`: doors count what is under way with them.
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
    """A door asks for an answer; its streams have numbers from `first_stream` on, which the door gives."""

    first_stream: int
    generate: Generate

    def answered_by(self, answer: "Taken | Refused") -> "Asked":
        """Names its answer, for a type checker."""
        return self


@dataclass(frozen=True, slots=True)
class Taken:
    """The graph has accepted what a door asked for (`Accepted`): its streams begin."""

    num_prompt_tokens: int
    may_be_refused: bool
    prompt_token_ids: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class StreamNews:
    """The news of one stream: its unread deltas, merged."""

    stream: int
    delta: Delta


@dataclass(frozen=True, slots=True)
class Deltas:
    """The server tells a door what is new in all of its streams."""

    parts: tuple[StreamNews, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """A door asks for what only the server knows: /metrics as `accept` wants it, the page's event, keys."""

    what: Literal["metrics", "live", "keys"]
    accept: str

    def answered_by(self, answer: "Fetched") -> "Fetch":
        """Names its answer, for a type checker."""
        return self


@dataclass(frozen=True, slots=True)
class Fetched:
    """The content that was fetched, and its type."""

    content: bytes
    content_type: str


@dataclass(frozen=True, slots=True)
class Answered:
    """A door tells the server of an HTTP request that is over, for /metrics."""

    method: str
    status: str
    handler: str
    num_bytes_in: int
    num_bytes_out: int
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Order:
    """An operator's order: a door asks the server to have every door do it, and the server asks the doors.

    Answered by a number, summed over all doors: of answers that were ended, or that are under way. `hold`
    lets no new answer begin, `release` does again, `wait` returns when none is under way, `keys` when the
    door has fetched them again.
    """

    what: Literal["abort", "hold", "release", "wait", "count", "keys"]
    answer_ids: tuple[str, ...] | None = None

    def answered_by(self, answer: "Number") -> "Order":
        """Names its answer, for a type checker."""
        return self


@dataclass(frozen=True, slots=True)
class AcquireLimit:
    """A door counts one more for `whose`, which may have `most` at all doors (`ConcurrencyLimits`)."""

    ticket: int
    """The door's own number, by which it is given back."""
    whose: str
    most: int | None

    def answered_by(self, answer: "LimitAcquired") -> "AcquireLimit":
        """Names its answer, for a type checker."""
        return self


@dataclass(frozen=True, slots=True)
class LimitAcquired:
    """Granted if `room_in_s` is None; else the limit is reached for about that long."""

    room_in_s: float | None


@dataclass(frozen=True, slots=True)
class ReleaseLimit:
    """A door gives back what it has taken under this ticket, if it was given any."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Number:
    """The answer to an order: a count."""

    number: int


@dataclass(frozen=True, slots=True)
class Ready:
    """A door tells the server that it accepts connections at this port."""

    port: int


@dataclass(frozen=True, slots=True)
class CannotListen:
    """A door tells the server why it cannot listen."""

    why: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The server tells a door to turn new requests away, finish what is under way, and end."""


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
