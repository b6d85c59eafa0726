"""Headers that say what a field of the body may say, too: the header is the one that counts, as in vLLM."""

from typing import Protocol

from actors.api.bodies.bounds import INT64_MAX
from actors.api.bodies.sampling import SamplingBody
from actors.api.errors import invalid, shown

MAX_CHARACTERS = 1024
REQUEST_ID = "X-Request-Id"
PRIORITY = "X-Vllm-Priority"


class Headers(Protocol):
    """A request's headers."""

    def get(self, key: str, /) -> str | None: ...


def request_id_of(headers: Headers, body: SamplingBody) -> str | None:
    """The id that the client has chosen for its request, if it has."""
    given = headers.get(REQUEST_ID)
    if not given:
        return body.request_id
    if len(given) > MAX_CHARACTERS:
        raise invalid(f"{REQUEST_ID} has {len(given)} characters: send at most {MAX_CHARACTERS}.", REQUEST_ID)
    return given


def priority_of(headers: Headers, body: SamplingBody) -> int:
    """The request's priority; raises 400 for a header that is no integer."""
    given = headers.get(PRIORITY)
    if given is None:
        return body.priority
    digits = given.strip().removeprefix("-")
    is_integer = digits.isascii() and digits.isdigit() and len(digits) < 20
    if not is_integer or not -INT64_MAX - 1 <= int(given) <= INT64_MAX:
        raise invalid(f"{PRIORITY} is {shown(given)}: send an integer of 64 bits.", PRIORITY)
    return int(given)
