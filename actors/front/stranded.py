"""Requests that wait for an engine: theirs was lost before their readers had been given anything."""

from actors.front.active_request import ActiveRequest
from actors.front.told import Told
from actors.kernel.actor import Ref
from actors.kernel.stream import Delta
from actors.messages import (
    Abort,
    Drain,
    Freeze,
    Health,
    Released,
    ResetPrefixCache,
    Siblings,
    Submit,
    Unserved,
)

ToRouter = Ref[Submit | Siblings | Abort | Released | ResetPrefixCache | Freeze | Drain]


class Stranded:
    """They wait while an engine may come back, and no longer."""

    __slots__ = ("_requests",)

    def __init__(self) -> None:
        self._requests: dict[str, ActiveRequest] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def add(self, request: ActiveRequest) -> None:
        """Until an engine admits it, what comes for its id is for an earlier request."""
        request.is_admitted = False
        self._requests[request.submit.request_id] = request

    def end(self, request_id: str, last: Delta, listeners: Told) -> bool:
        """A request is over; whether it waited here."""
        if self._requests.pop(request_id, None) is None:
            return False
        listeners.tell(Unserved((request_id,), "abort" if last.finish_reason == "abort" else "error"))
        return True

    def rescue(self, health: Health, router: ToRouter) -> list[ActiveRequest]:
        """Send them to an engine that is up; returns those for which none ever will be."""
        if not self._requests or health.status == "restarting":
            return []
        if not health.serves:
            return list(self._requests.values())
        rescued, self._requests = self._requests, {}
        for request in rescued.values():
            router.tell(request.submit)
        return []
