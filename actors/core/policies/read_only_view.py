"""What a user's policy is shown of the state, to read; what it looks at is noted (`core/seen.py`)."""

from operator import attrgetter

from actors.core.policies.read_only import ReadOnlyRequest, ReadOnlyRequests, read_only
from actors.core.queue.view import View


class ReadOnlyView:
    """A `View`, which takes and gives read-only requests; `memory` alone may change."""

    __slots__ = ("_view",)

    def __init__(self, view: View) -> None:
        self._view = view

    limits = property(attrgetter("_view.limits"))

    @property
    def now_s(self) -> float:
        self._view.seen.moment = True
        return self._view.now_s

    @property
    def step(self) -> int:
        self._view.seen.moment = True
        return self._view.step

    def is_past(self, time_s: float) -> bool:
        """Whether the time has come; if not, that it was asked for is noted."""
        view = self._view
        if view.is_past(time_s):
            return True
        view.seen.until_s = min(view.seen.until_s, time_s)
        return False

    def has_waited(self, request: ReadOnlyRequest, num_steps: int) -> bool:
        """Whether the request has waited for so long; if not, that it was asked for is noted."""
        view, seen, asked = self._view, self._view.seen, request._request
        if asked is not seen.request:
            seen.anything = True
            return view.has_waited(asked, num_steps)
        if view.has_waited(asked, num_steps):
            return True
        seen.until_step = min(seen.until_step, asked.waiting_since + num_steps)
        return False

    @property
    def num_waiting(self) -> int:
        self._view.seen.anything = True
        return self._view.num_waiting

    @property
    def num_free_blocks(self) -> int:
        self._view.seen.anything = True
        return self._view.num_free_blocks

    def service(self, tenant: str | None) -> float:
        self._view.seen.anything = True
        return self._view.service(tenant)

    @property
    def memory(self) -> object:
        self._view.seen.memory = True
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
        view.seen.anything = True
        return tuple([read_only(request, view) for request in view.waiting])

    def random(self, *key: ReadOnlyRequest | str | int) -> float:
        names = [part._request if isinstance(part, ReadOnlyRequest) else part for part in key]
        return self._view.random(*names)

    def num_output_tokens(self, request: ReadOnlyRequest) -> int:
        return self._of(request).num_output_tokens(request._request)

    def num_computed_tokens(self, request: ReadOnlyRequest) -> int:
        return self._of(request).num_computed_tokens(request._request)

    def num_new_tokens(self, request: ReadOnlyRequest) -> int:
        return self._of(request).num_new_tokens(request._request)

    def num_waited_steps(self, request: ReadOnlyRequest) -> int:
        self._view.seen.moment = True
        return self._of(request).num_waited_steps(request._request)

    def num_hit_tokens(self, request: ReadOnlyRequest) -> int:
        self._view.seen.anything = True
        return self._view.num_hit_tokens(request._request)

    def num_lost_tokens(self, request: ReadOnlyRequest) -> int:
        self._view.seen.anything = True
        return self._view.num_lost_tokens(request._request)

    def _of(self, request: ReadOnlyRequest) -> View:
        """The view, for a look at counts of a request."""
        self._view.seen.look_at(request._request)
        return self._view
