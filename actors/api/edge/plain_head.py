"""The heads of plain HTTP/1.1 requests, which nearly all are, read in one go.

Law: what is read here, h11 reads as the same request. Whatever is out of the ordinary is left to it: other
methods and versions, chunked bodies, `Expect`, `Upgrade`, `Connection: close`, all that is malformed.
"""

import string
from typing import NamedTuple

METHODS = {b"GET": "GET", b"POST": "POST"}
MOST_BYTES = 2**14
"""Of a head. Larger ones are rare, and h11 has a limit of its own."""
MOST_LENGTH_DIGITS = 12
END, LINE_END = b"\r\n\r\n", b"\r\n"
NAME = f"!#$%&'*+-.^_`|~{string.digits}{string.ascii_letters}".encode()
VISIBLE = bytes(range(0x21, 0x7F))
CONTROLS = bytes([*range(0x20), 0x7F])
OTHERS = frozenset((b"transfer-encoding", b"expect", b"upgrade", b"trailer", b"te"))
"""Headers of requests that are not plain."""


class Head(NamedTuple):
    """A request but for its body."""

    method: str
    target: bytes
    headers: list[tuple[bytes, bytes]]
    num_body_bytes: int
    num_bytes: int
    """Of the head itself."""


def read_head(data: bytes) -> Head | None:
    """The head that `data` begins with; None if it is not whole, or not plain. O(its bytes)."""
    end = data.find(END, 0, MOST_BYTES)
    if end < 0:
        return None
    line, *lines = data[:end].split(LINE_END)
    words = line.split(b" ")
    if len(words) != 3 or words[2] != b"HTTP/1.1":
        return None
    method, target = METHODS.get(words[0]), words[1]
    if method is None or not target.startswith(b"/") or target.translate(None, VISIBLE):
        return None
    headers = []
    num_hosts, length = 0, None
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or name.translate(None, NAME) or value.translate(None, CONTROLS) != value:
            return None
        name, value = name.lower(), value.strip(b" ")
        if name == b"content-length":
            if length is not None or not value.isdigit() or len(value) > MOST_LENGTH_DIGITS:
                return None
            length = int(value)
        elif name == b"host":
            num_hosts += 1
        elif name in OTHERS or (name == b"connection" and value.lower() != b"keep-alive"):
            return None
        headers.append((name, value))
    if num_hosts != 1:
        return None
    return Head(method, target, headers, length or 0, end + len(END))
