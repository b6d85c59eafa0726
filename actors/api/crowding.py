"""Limits on the bytes of request bodies in memory, in total and per key.

Law: the bodies in memory never exceed `most_bytes`, nor those of one key `most_bytes_of_a_key`. A request
whose next piece would exceed a limit is refused; others continue.
"""

from dataclasses import dataclass, field
from typing import Protocol

MOST_BYTES = 2**28
MOST_BYTES_OF_A_KEY = 2**26


class HasBody(Protocol):
    """Request that has a body: the digest of its key, if keys distinguish clients, and its bytes so far."""

    num_body_bytes: int

    @property
    def owner(self) -> str | None: ...


@dataclass(slots=True)
class BodiesUnderWay:
    """Requests whose bodies are in memory."""

    most_bytes: int = MOST_BYTES
    most_bytes_of_a_key: int = MOST_BYTES_OF_A_KEY
    num_bytes: int = 0
    _requests: list[HasBody] = field(default_factory=list)

    def add(self, request: HasBody, num_bytes: int) -> bool:
        """Count a piece of a body; return False if the request must be refused for lack of room."""
        if self.num_bytes + num_bytes > self.most_bytes:
            return False
        if request.owner is not None and self.num_bytes + num_bytes > self.most_bytes_of_a_key:
            own = sum(each.num_body_bytes for each in self._requests if each.owner == request.owner)
            if own + num_bytes > self.most_bytes_of_a_key:
                return False
        if not request.num_body_bytes:
            self._requests.append(request)
        request.num_body_bytes += num_bytes
        self.num_bytes += num_bytes
        return True

    def release(self, request: HasBody) -> None:
        """Stop counting a request that ended, or whose body was dropped."""
        if request.num_body_bytes:
            self._requests = [each for each in self._requests if each is not request]
            self.num_bytes -= request.num_body_bytes
            request.num_body_bytes = 0
