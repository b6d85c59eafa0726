"""What a user's policy is shown of requests and of the state: facts that it can read and not change.

Law: nothing that a policy does to what it is handed reaches the scheduler, its own memory excepted. A write
is an AttributeError, and ends the policy like any other. Our own policies are trusted, and see the records
themselves.
"""

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from operator import attrgetter

from actors.core.queue.view import View
from actors.core.request import Request, Submit


def _fact(path: str) -> property:
    """What stands at this path, to read."""
    return property(attrgetter(path))


def _count(path: str) -> property:
    """What stands at this path of a request, and may change; that it was looked at is noted."""
    read = attrgetter(path)

    def look(self: "ReadOnlyRequest") -> object:
        self._view.seen.look_at(self._request)
        return read(self)

    return property(look)


class ReadOnlySubmit:
    """A `Submit`: what arrived."""

    __slots__ = ("_submit",)

    def __init__(self, submit: Submit) -> None:
        self._submit = submit

    request_id = _fact("_submit.request_id")
    arrival_s = _fact("_submit.arrival_s")
    num_prompt_tokens = _fact("_submit.num_prompt_tokens")
    max_tokens = _fact("_submit.max_tokens")
    prompt_token_ids = _fact("_submit.prompt_token_ids")
    block_hashes = _fact("_submit.block_hashes")
    sampling = _fact("_submit.sampling")
    eos_token_id = _fact("_submit.eos_token_id")
    priority = _fact("_submit.priority")
    cache_salt = _fact("_submit.cache_salt")
    tenant = _fact("_submit.tenant")
    slo_ttft_s = _fact("_submit.slo_ttft_s")
    predicted_tokens = _fact("_submit.predicted_tokens")
    slo_tpot_s = _fact("_submit.slo_tpot_s")
    slo_e2e_s = _fact("_submit.slo_e2e_s")
    adapter = _fact("_submit.adapter")
    session = _fact("_submit.session")
    has_remote_kv = _fact("_submit.has_remote_kv")
    trace_headers = _fact("_submit.trace_headers")


class ReadOnlyRequest:
    """A `Request`, with exact counts of tokens at any moment. Two of the same request are equal."""

    __slots__ = ("_request", "_submit", "_view")

    def __init__(self, request: Request, view: View) -> None:
        self._request = request
        self._submit = ReadOnlySubmit(request.submit)
        self._view = view

    submit = _fact("_submit")
    request_id = _fact("_request.request_id")
    status = _count("_request.status")
    num_preemptions = _count("_request.num_preemptions")
    waiting_since = _count("_request.waiting_since")
    admission_step = _count("_request.admission_step")
    num_tokens_at_admission = _count("_request.num_tokens_at_admission")
    order = _count("_request.order")
    length_limit = _fact("_request.length_limit")

    @property
    def num_overtakes(self) -> int:
        self._view.seen.anything = True
        return self._request.num_overtakes

    @property
    def num_output_tokens(self) -> int:
        self._view.seen.look_at(self._request)
        return self._view.num_output_tokens(self._request)

    @property
    def num_tokens(self) -> int:
        return self._request.submit.num_prompt_tokens + self.num_output_tokens

    @property
    def num_computed_tokens(self) -> int:
        self._view.seen.look_at(self._request)
        return self._view.num_computed_tokens(self._request)

    @property
    def token_ids(self) -> tuple[int, ...] | None:
        self._view.seen.look_at(self._request)
        token_ids = self._request.token_ids
        return None if token_ids is None else tuple(token_ids)

    @property
    def block_ids(self) -> tuple[int, ...]:
        self._view.seen.look_at(self._request)
        return tuple(self._request.block_ids)

    def is_of(self, request: Request | None) -> bool:
        """Whether it shows this very request."""
        return self._request is request

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReadOnlyRequest) and other._request is self._request

    def __hash__(self) -> int:
        return hash(self._request)

    def __repr__(self) -> str:
        self._view.seen.anything = True
        return repr(self._request)


def read_only(request: Request, view: View) -> ReadOnlyRequest:
    """What is shown of the request: the same object each time, until the request has ended."""
    shown = request.shown
    if not isinstance(shown, ReadOnlyRequest):
        shown = request.shown = ReadOnlyRequest(request, view)
    return shown


class ReadOnlyRequests(Mapping[str, ReadOnlyRequest]):
    """Some requests by id, in their order; reading one costs O(1)."""

    __slots__ = ("_requests", "_view")

    def __init__(self, requests: Mapping[str, Request], view: View) -> None:
        self._requests = requests
        self._view = view

    def __getitem__(self, request_id: str) -> ReadOnlyRequest:
        self._view.seen.anything = True
        return read_only(self._requests[request_id], self._view)

    def __iter__(self) -> Iterator[str]:
        self._view.seen.anything = True
        return iter(self._requests)

    def __reversed__(self) -> Iterator[str]:
        self._view.seen.anything = True
        return reversed(list(self._requests))

    def __len__(self) -> int:
        self._view.seen.anything = True
        return len(self._requests)

    def values(self) -> "Values":
        return Values(self)

    def items(self) -> "Items":
        return Items(self)


class Values(ValuesView[ReadOnlyRequest]):
    """The requests, from either end."""

    _mapping: ReadOnlyRequests

    def __reversed__(self) -> Iterator[ReadOnlyRequest]:
        return map(self._mapping.__getitem__, reversed(self._mapping))


class Items(ItemsView[str, ReadOnlyRequest]):
    """Ids and requests, from either end."""

    _mapping: ReadOnlyRequests

    def __reversed__(self) -> Iterator[tuple[str, ReadOnlyRequest]]:
        return ((name, self._mapping[name]) for name in reversed(self._mapping))
