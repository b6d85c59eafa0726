"""Requests that are over for their readers, and not yet for an engine: their ids are still in use."""

from collections.abc import Container, Iterable

from actors.front.stranded import ToRouter
from actors.front.told import Told
from actors.messages import Released, Unserved


class Leaving:
    """Until their engine has ended them, or is lost."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: set[str] = set()

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._names

    def add(self, request_id: str) -> None:
        self._names.add(request_id)

    def ended(self, request_ids: Iterable[str], router: ToRouter) -> None:
        """An engine has ended requests: forget those that were leaving."""
        if not self._names:
            return
        if gone := _those_in(request_ids, self._names):
            self._names.difference_update(gone)
            router.tell(Released(gone))

    def lost(self, request_ids: Iterable[str], listeners: Told) -> None:
        """An engine is lost with these, and will end none of them."""
        if gone := _those_in(request_ids, self._names):
            self._names.difference_update(gone)
            listeners.tell(Unserved(gone, "abort"))


def _those_in(names: Iterable[str], chosen: Container[str]) -> tuple[str, ...]:
    return tuple([name for name in names if name in chosen])
