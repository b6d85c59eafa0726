"""Read-only views of requests and the state for a user's policy or router.

Law: assigning to a view, or deleting from it, raises AttributeError; only `view.memory` can be changed.
Built-in policies get the records themselves. This catches mistakes and is no sandbox: names that begin with
an underscore lead to the records.
"""

from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from operator import attrgetter
from typing import Any

from sundog.actors.core.queue.view import View
from sundog.actors.core.request import Request, Status, Submit


class ReadOnly:
    """Read-only view of a record."""

    __slots__ = ("_record",)

    def __init__(self, record: object) -> None:
        object.__setattr__(self, "_record", record)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self._record).__name__}.{name} cannot be assigned: it is read-only")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self._record).__name__}.{name} cannot be deleted: it is read-only")

    def __repr__(self) -> str:
        return repr(self._record)


def _facts(kind: type) -> dict[str, object]:
    """Return a property for each public field of a record: three times as fast as `__getattr__`."""
    names = [name for name, value in vars(kind).items() if not name.startswith("_") and not callable(value)]
    return {name: property(attrgetter(f"_record.{name}")) for name in names}


ReadOnlySubmit = type("ReadOnlySubmit", (ReadOnly,), {"__slots__": (), **_facts(Submit)})
ReadOnlyView = type("ReadOnlyView", (ReadOnly,), {"__slots__": (), **_facts(View)})


class RequestView(ReadOnly):
    """Read-only view of a request, the same object until the request has ended."""

    __slots__ = ("_view", "request_id", "submit")
    _record: Request

    def __init__(self, request: Request, view: View) -> None:
        super().__init__(request)
        object.__setattr__(self, "_view", view)
        object.__setattr__(self, "request_id", request.request_id)
        object.__setattr__(self, "submit", ReadOnlySubmit(request.submit))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"policies cannot read Request.{name} (docs/policies.md lists the fields)")

    @property
    def status(self) -> Status:
        return self._record.status

    @property
    def num_preemptions(self) -> int:
        return self._record.num_preemptions

    @property
    def num_output_tokens(self) -> int:
        view: View = self._view
        return view.num_output_tokens(self._record)

    @property
    def num_computed_tokens(self) -> int:
        view: View = self._view
        return view.num_computed_tokens(self._record)


def shown(request: Request, view: View) -> RequestView:
    """Return the view of a request that is passed to a policy."""
    found = request.shown
    if not isinstance(found, RequestView):
        found = request.shown = RequestView(request, view)
    return found


class RequestViews(Mapping[str, RequestView]):
    """Read-only mapping from ids to request views, in order; lookup is O(1)."""

    __slots__ = ("_requests", "_view")

    def __init__(self, requests: Mapping[str, Request], view: View) -> None:
        self._requests = requests
        self._view = view

    def __getitem__(self, name: str) -> RequestView:
        return shown(self._requests[name], self._view)

    def __iter__(self) -> Iterator[str]:
        return iter(self._requests)

    def __reversed__(self) -> Iterator[str]:
        return reversed(list(self._requests))

    def __len__(self) -> int:
        return len(self._requests)

    def values(self) -> ValuesView[RequestView]:
        return {name: self[name] for name in self._requests}.values()

    def items(self) -> ItemsView[str, RequestView]:
        return {name: self[name] for name in self._requests}.items()


def _of_record(name: str) -> Callable[..., Any]:
    """Return `View`'s method of this name, adapted to request views."""
    method = getattr(View, name)

    def call(self: "PolicyView", request: RequestView, *more: object) -> object:
        return method(self._record, request._record, *more)

    return call


class PolicyView(ReadOnlyView):  # type: ignore[misc, valid-type]  # made above
    """`View` that takes and returns request views."""

    __slots__ = ()
    _record: View

    first_token_s = _of_record("first_token_s")
    last_token_s = _of_record("last_token_s")
    token_due_s = _of_record("token_due_s")
    num_output_tokens = _of_record("num_output_tokens")
    num_computed_tokens = _of_record("num_computed_tokens")
    num_new_tokens = _of_record("num_new_tokens")
    num_waited_steps = _of_record("num_waited_steps")
    has_waited = _of_record("has_waited")
    num_hit_tokens = _of_record("num_hit_tokens")
    num_lost_tokens = _of_record("num_lost_tokens")

    @property
    def running(self) -> RequestViews:
        return RequestViews(self._record.running, self._record)

    @property
    def waiting(self) -> tuple[RequestView, ...]:
        return tuple([shown(request, self._record) for request in self._record.waiting])

    def random(self, *key: RequestView | str | int) -> float:
        return self._record.random(
            *[part.request_id if isinstance(part, RequestView) else part for part in key]
        )

    def __setattr__(self, name: str, value: object) -> None:
        if name != "memory":
            super().__setattr__(name, value)
        self._record.memory = value
