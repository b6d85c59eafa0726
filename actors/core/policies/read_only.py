"""What a user's policy is shown of requests and of the state: facts that it can read and not change.

Law: nothing that a policy does to what it is handed reaches the scheduler, its own memory excepted. A write
is an AttributeError, and ends the policy like any other. Our own policies are trusted, and see the records
themselves.
"""

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from operator import attrgetter

from actors.core.request import Request, Submit
from actors.core.view import View


def _fact(path: str) -> property:
    """What stands at this path, to read."""
    return property(attrgetter(path))


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
    status = _fact("_request.status")
    num_preemptions = _fact("_request.num_preemptions")
    num_overtakes = _fact("_request.num_overtakes")
    waiting_since = _fact("_request.waiting_since")
    admission_step = _fact("_request.admission_step")
    num_tokens_at_admission = _fact("_request.num_tokens_at_admission")
    order = _fact("_request.order")
    length_limit = _fact("_request.length_limit")

    @property
    def num_output_tokens(self) -> int:
        return self._view.num_output_tokens(self._request)

    @property
    def num_tokens(self) -> int:
        return self._request.submit.num_prompt_tokens + self.num_output_tokens

    @property
    def num_computed_tokens(self) -> int:
        return self._view.num_computed_tokens(self._request)

    @property
    def token_ids(self) -> tuple[int, ...] | None:
        token_ids = self._request.token_ids
        return None if token_ids is None else tuple(token_ids)

    @property
    def block_ids(self) -> tuple[int, ...]:
        return tuple(self._request.block_ids)

    def is_of(self, request: Request | None) -> bool:
        """Whether it shows this very request."""
        return self._request is request

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReadOnlyRequest) and other._request is self._request

    def __hash__(self) -> int:
        return hash(self._request)

    def __repr__(self) -> str:
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
        return read_only(self._requests[request_id], self._view)

    def __iter__(self) -> Iterator[str]:
        return iter(self._requests)

    def __reversed__(self) -> Iterator[str]:
        return reversed(list(self._requests))

    def __len__(self) -> int:
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


class ReadOnlyView:
    """A `View`, which takes and gives read-only requests; `memory` alone may change."""

    __slots__ = ("_view",)

    def __init__(self, view: View) -> None:
        self._view = view

    limits = _fact("_view.limits")
    now_s = _fact("_view.now_s")
    step = _fact("_view.step")
    num_waiting = _fact("_view.num_waiting")
    num_free_blocks = _fact("_view.num_free_blocks")
    service = _fact("_view.service")

    @property
    def memory(self) -> object:
        return self._view.memory

    @memory.setter
    def memory(self, memory: object) -> None:
        self._view.memory = memory

    @property
    def running(self) -> ReadOnlyRequests:
        return ReadOnlyRequests(self._view.running, self._view)

    @property
    def waiting(self) -> tuple[ReadOnlyRequest, ...]:
        view = self._view
        return tuple([read_only(request, view) for request in view.waiting])

    def random(self, *key: ReadOnlyRequest | str | int) -> float:
        names = [part._request if isinstance(part, ReadOnlyRequest) else part for part in key]
        return self._view.random(*names)

    def num_output_tokens(self, request: ReadOnlyRequest) -> int:
        return self._view.num_output_tokens(request._request)

    def num_computed_tokens(self, request: ReadOnlyRequest) -> int:
        return self._view.num_computed_tokens(request._request)

    def num_new_tokens(self, request: ReadOnlyRequest) -> int:
        return self._view.num_new_tokens(request._request)

    def num_waited_steps(self, request: ReadOnlyRequest) -> int:
        return self._view.num_waited_steps(request._request)

    def num_hit_tokens(self, request: ReadOnlyRequest) -> int:
        return self._view.num_hit_tokens(request._request)

    def num_lost_tokens(self, request: ReadOnlyRequest) -> int:
        return self._view.num_lost_tokens(request._request)
