"""The bytes of bodies under way, of all requests and of each key's: a server holds what clients send.

Law: no number of clients makes a server hold more than `most_bytes` of bodies, nor those of one key more than
`most_bytes_of_a_key`; the request whose piece would is refused, and the others go on.
"""

from dataclasses import dataclass, field
from typing import Protocol

MOST_BYTES = 2**28
MOST_BYTES_OF_A_KEY = 2**26


class HasBody(Protocol):
    """A request: the digest of its key, if keys tell clients apart, and the bytes of its body so far."""

    num_body_bytes: int

    @property
    def owner(self) -> str | None: ...


@dataclass(slots=True)
class BodiesUnderWay:
    """The requests whose bodies are held."""

    most_bytes: int = MOST_BYTES
    most_bytes_of_a_key: int = MOST_BYTES_OF_A_KEY
    num_bytes: int = 0
    _requests: list[HasBody] = field(default_factory=list)

    def add(self, request: HasBody, num_bytes: int) -> bool:
        """Count a piece of a body; False if there is no room, and the request is to be refused."""
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
        """Forget a request that is over, or whose body was dropped."""
        if request.num_body_bytes:
            self._requests = [each for each in self._requests if each is not request]
            self.num_bytes -= request.num_body_bytes
            request.num_body_bytes = 0
