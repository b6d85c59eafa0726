"""Frames of a link. Sizes are bounded, and nothing that is received is executed.

A frame is a header of 15 bytes, little-endian, and a body:

| bytes | what |
|---|---|
| 4 | length of the body |
| 1 | kind |
| 4 | channel: the addressed actor; its sender chose the number when it opened the channel |
| 4 | number, by which an answer finds its question; 0 where none is expected |
| 2 | tag: the type of the body, as both ends number them |
"""

import enum
import struct
from collections.abc import Iterator
from typing import NamedTuple

HEADER = struct.Struct("<IBIIH")
MOST_BYTES = 2**30
"""Most bytes of a body: a step's log probabilities of a whole vocabulary for hundreds of tokens."""
NOTHING = 0
"""Tag of a frame without a body, and of an answer that is None."""


class WireError(Exception):
    """A link received or sent data that violates the protocol, and cannot continue."""


class FrameKind(enum.IntEnum):
    """Purpose of a frame. The first five go to the end with the actor, others come from it."""

    OPEN = 1
    """Requests a channel to an actor, named by the body."""
    OPEN_LISTENER = 2
    """Requests a channel for a sender that does not keep the actor alive."""
    TELL = 3
    ASK = 4
    HANG_UP = 5
    ANSWER = 6
    FAILED = 7
    """Reports that there will be no answer; the body has the reason."""
    TAKEN = 8
    """The oldest message of this channel has left its bounded mailbox."""
    ENDED = 9
    """The actor stopped accepting messages."""
    OPENED = 10
    """The channel is open; the number is the capacity of the actor's mailbox, 0 for unbounded."""
    NOT_OPENED = 11
    """The channel could not be opened; the body has the reason."""


KINDS = frozenset(map(int, FrameKind))


class Frame(NamedTuple):
    """Frame whose `body` is still packed."""

    kind: FrameKind
    channel: int
    number: int = 0
    tag: int = NOTHING
    body: bytes = b""

    def packed(self) -> bytes:
        """Return the frame's bytes; raises WireError if the body is too long."""
        kind, channel, number, tag, body = self
        if len(body) > MOST_BYTES:
            raise WireError(f"a message of {len(body)} bytes is too long for the wire: at most {MOST_BYTES}")
        return HEADER.pack(len(body), kind, channel, number, tag) + body


class Frames:
    """Reassembles frames from a socket's bytes."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that `data` completes; WireError for an invalid header."""
        self._rest += data
        start = 0
        try:
            while len(self._rest) - start >= HEADER.size:
                length, kind, channel, number, tag = HEADER.unpack_from(self._rest, start)
                if length > MOST_BYTES:
                    raise WireError(f"a frame of {length} bytes: at most {MOST_BYTES} are taken")
                if kind not in KINDS:
                    raise WireError(f"a frame of the unknown kind {kind}")
                begin, end = start + HEADER.size, start + HEADER.size + length
                if end > len(self._rest):
                    break
                start = end
                yield Frame(
                    FrameKind(kind), channel, number=number, tag=tag, body=bytes(self._rest[begin:end])
                )
        finally:
            del self._rest[:start]
