"""A user's policy, wrapped once: whatever it does wrong becomes one error with a name.

Our own policies are trusted and never wrapped. A wrapped one is shown requests that it cannot change
(`read_only.py`), and what it returns is checked: ranks must be comparable with each other, a victim must be
running. A failure ends the run, unless there is a fallback: then the policy alone ends, and the queue is
ranked anew.
"""

import copy
from collections.abc import Callable
from typing import cast

from actors.core.config import ConfigError
from actors.core.policies.answers import (
    ANY,
    Kind,
    Wrong,
    as_key,
    as_quota,
    as_refusal,
    as_victim,
    kind_in_words,
    kind_of,
    names_of,
    raised,
    shown,
)
from actors.core.policies.patience import Patient, Shown
from actors.core.policies.read_only import ReadOnlyRequests, read_only
from actors.core.policies.read_only_view import ReadOnlyView
from actors.core.queue.policy import Policy, Rank, Refusal, defines
from actors.core.queue.view import View
from actors.core.request import Request


class PolicyError(ConfigError):
    """What a user's policy did: file and class, method, request and reason, in one line."""


class Guarded(Policy):
    """The policy `inner`, known to its author as `name`; one object for each replica."""

    _shown: Shown
    """The same policy: it is handed all that it may use of a `Request` or a `View`."""

    def __init__(self, inner: Policy, name: str) -> None:
        self.name = name
        self.fallback: Policy | None = None
        """Takes over when `inner` fails; None: its failure is raised."""
        self.failure: PolicyError | None = None
        self.on_failure: list[Callable[[PolicyError], None]] = []
        """Told, in order, when the fallback has taken over."""
        self._use(inner)

    def show(self, view: View) -> None:
        """Learn what to show of the state; the scheduler whose policy it is calls this once."""
        self._view = ReadOnlyView(view)

    def stalled(self, reason: str) -> None:
        """Let the policy fail under which no request gets on."""
        self._fail(PolicyError(f"policy {self.name}: {reason}"), None)

    def replace_when_slow(self, clock: Callable[[], float]) -> None:
        """Let the policy fail that takes long to answer, by a clock in seconds."""
        self._shown = Patient(self._shown, clock)

    def for_replica(self) -> "Guarded":
        """The same policy, sharing nothing with this one."""
        return Guarded(copy.deepcopy(self.inner), self.name)

    @property
    def token_weights(self) -> tuple[float, float] | None:
        return self.inner.token_weights

    def rank(self, request: Request, view: View) -> Rank:
        if self.failure is None:
            view.seen.begin(request)
            try:
                rank = self._shown.rank(read_only(request, view), self._view)
                if type(rank) is not self._usual or rank != rank:
                    self._check_kind("rank", rank)
                return rank
            except ANY as error:
                self._failed("rank", request.request_id, error)
        return self.inner.rank(request, view)

    def rank_key(self, request: Request, view: View) -> object:
        if self.failure is None:
            try:
                return as_key(self._shown.rank_key(read_only(request, view), self._view))
            except ANY as error:
                self._failed("rank_key", request.request_id, error)
        return self.inner.rank_key(request, view)

    def urgency(self, request: Request, view: View) -> Rank:
        """The request's urgency; all are equally urgent once the policy has failed."""
        if self.failure is None:
            try:
                urgency = self._shown.urgency(read_only(request, view), self._view)
                self._check_kind("urgency", urgency)
                return (0, urgency)
            except ANY as error:
                self._failed("urgency", request.request_id, error)
        return (-1,)

    def quota(self, request: Request, view: View) -> int | None:
        if self.failure is None:
            try:
                return as_quota(self._shown.quota(read_only(request, view), self._view))
            except ANY as error:
                self._failed("quota", request.request_id, error)
        return self.inner.quota(request, view)

    def refuse(self, request: Request, view: View) -> Refusal | None:
        if self.failure is None:
            view.seen.num_changes += 1
            try:
                return as_refusal(self._shown.refuse(read_only(request, view), self._view))
            except ANY as error:
                self._failed("refuse", request.request_id, error)
        return self.inner.refuse(request, view)

    def new_memory(self) -> object:
        return self.inner.new_memory()

    def admitted(self, request: Request, view: View) -> None:
        if self.failure is None:
            view.seen.num_changes += 1
            try:
                return self._shown.admitted(read_only(request, view), self._view)
            except ANY as error:
                self._failed("admitted", request.request_id, error)
        return self.inner.admitted(request, view)

    def finished(self, request: Request, view: View) -> None:
        if self.failure is None:
            view.seen.num_changes += 1
            try:
                return self._shown.finished(read_only(request, view), self._view)
            except ANY as error:
                self._failed("finished", request.request_id, error)
        return self.inner.finished(request, view)

    def victim(self, running: dict[str, Request], view: View) -> Request:
        if self.failure is None:
            try:
                return as_victim(self._shown.victim(ReadOnlyRequests(running, view), self._view), running)
            except ANY as error:
                self._failed("victim", names_of(list(running)), error)
        return self.inner.victim(running, view)

    def _remembers(self) -> bool:
        return defines(self.inner, "new_memory")

    def _use(self, inner: Policy) -> None:
        self.inner = inner
        self._shown = cast(Shown, inner)
        self._kinds: dict[str, Kind] = {}
        self._usual: type | None = None
        """Ranks of this type need no second look, unless they are NaN."""
        # What the wrapped class says of its objects, said of this one.
        self.returns_to_front = inner.returns_to_front  # type: ignore[misc]
        self.is_dynamic = inner.is_dynamic  # type: ignore[misc]
        self.prefills_first = inner.prefills_first  # type: ignore[misc]

    def _check_kind(self, method: str, value: object) -> None:
        """Check that a method's values are of one kind: sorting mixed ones would fail, now or later."""
        kind = kind_of(value)
        usual = self._kinds.setdefault(method, kind)
        if kind != usual:
            before = kind_in_words(usual)
            raise Wrong(f"returned {shown(value)}, and {before} before: all must be comparable")
        if method == "rank" and kind in ("a number", "text"):
            self._usual = type(value)

    def _failed(self, method: str, subject: str, error: BaseException) -> None:
        reason = str(error) if isinstance(error, Wrong) else f"raised {raised(error)}"
        if isinstance(error, TypeError | AttributeError) and "'NoneType'" in reason and not self._remembers():
            reason += ": view.memory is None until a new_memory() makes it"
        self._fail(PolicyError(f"policy {self.name}: {method} of {subject} {reason}"), error)

    def _fail(self, failure: PolicyError, cause: BaseException | None) -> None:
        """Let the fallback take over; raises the failure if there is none."""
        if self.fallback is None:
            raise failure from cause
        self.failure = failure
        self._use(self.fallback)
        for tell in self.on_failure:
            tell(failure)


def guarded(policy: Policy, name: str | None = None) -> Policy:
    """The policy as one replica may use it: a user's is wrapped, ours is not."""
    if isinstance(policy, Guarded):
        return policy.for_replica()
    if type(policy).__module__.startswith("actors.core.policies."):
        return policy
    return Guarded(copy.deepcopy(policy), name or type(policy).__qualname__)
