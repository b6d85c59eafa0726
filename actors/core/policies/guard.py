"""A user's policy, wrapped once: whatever it does wrong becomes one error with a name.

Our own policies are trusted and never wrapped. A wrapped one is shown requests that it cannot change
(`read_only.py`), and what it returns is checked: ranks must be comparable with each other, a victim must be
running. A failure ends the run, unless there is a fallback: then the policy alone ends, and the queue is
ranked anew.
"""

import copy
import math
import traceback
from collections.abc import Callable, Iterable
from typing import Protocol, cast

from actors.core.config import ConfigError
from actors.core.policies.policy import Policy, Rank
from actors.core.policies.read_only import ReadOnlyRequest, ReadOnlyRequests, ReadOnlyView, read_only
from actors.core.request import Request
from actors.core.view import View

Kind = str | tuple["Kind", ...]
"""As what values are compared: a number, a text, or a tuple of these."""


class PolicyError(ConfigError):
    """What a user's policy did: file and class, method, request and reason, in one line."""


class _Wrong(Exception):
    """A method returned what it must not."""


ANY = (Exception, SystemExit)
"""Whatever a user's code raises; an `exit()` in it ends the policy, not the server."""


class Shown(Protocol):
    """A user's policy: like a `Policy`, and what it is shown is read-only."""

    def rank(self, request: ReadOnlyRequest, view: ReadOnlyView) -> Rank: ...

    def urgency(self, request: ReadOnlyRequest, view: ReadOnlyView) -> Rank: ...

    def quota(self, request: ReadOnlyRequest, view: ReadOnlyView) -> int | None: ...

    def admitted(self, request: ReadOnlyRequest, view: ReadOnlyView) -> None: ...

    def finished(self, request: ReadOnlyRequest, view: ReadOnlyView) -> None: ...

    def victim(self, running: ReadOnlyRequests, view: ReadOnlyView) -> object: ...


class Guarded(Policy):
    """The policy `inner`, known to its author as `name`; one object for each replica."""

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

    def for_replica(self) -> "Guarded":
        """The same policy, sharing nothing with this one."""
        return Guarded(copy.deepcopy(self.inner), self.name)

    @property
    def token_weights(self) -> tuple[float, float] | None:
        return self.inner.token_weights

    def rank(self, request: Request, view: View) -> Rank:
        if self.failure is None:
            try:
                rank = self._shown.rank(read_only(request, view), self._view)
                if type(rank) is not self._usual or rank != rank:
                    self._check_kind("rank", rank)
                return rank
            except ANY as error:
                self._fail("rank", request.request_id, error)
        return self.inner.rank(request, view)

    def urgency(self, request: Request, view: View) -> Rank:
        """The request's urgency; all are equally urgent once the policy has failed."""
        if self.failure is None:
            try:
                urgency = self._shown.urgency(read_only(request, view), self._view)
                self._check_kind("urgency", urgency)
                return (0, urgency)
            except ANY as error:
                self._fail("urgency", request.request_id, error)
        return (-1,)

    def quota(self, request: Request, view: View) -> int | None:
        if self.failure is None:
            try:
                quota = self._shown.quota(read_only(request, view), self._view)
                if quota is not None and (not isinstance(quota, int) or quota < 1):
                    raise _Wrong(f"returned {_shown(quota)}: it must be a whole number from 1 on, or None")
                return quota
            except ANY as error:
                self._fail("quota", request.request_id, error)
        return self.inner.quota(request, view)

    def new_memory(self) -> object:
        return self.inner.new_memory()

    def admitted(self, request: Request, view: View) -> None:
        if self.failure is None:
            try:
                return self._shown.admitted(read_only(request, view), self._view)
            except ANY as error:
                self._fail("admitted", request.request_id, error)
        return self.inner.admitted(request, view)

    def finished(self, request: Request, view: View) -> None:
        if self.failure is None:
            try:
                return self._shown.finished(read_only(request, view), self._view)
            except ANY as error:
                self._fail("finished", request.request_id, error)
        return self.inner.finished(request, view)

    def victim(self, running: dict[str, Request], view: View) -> Request:
        if self.failure is None:
            try:
                victim = self._shown.victim(ReadOnlyRequests(running, view), self._view)
                if isinstance(victim, ReadOnlyRequest):
                    found = running.get(victim.request_id)
                    if found is not None and victim.is_of(found):
                        return found
                raise _Wrong(f"returned {_shown(victim)}, which is no request that runs")
            except ANY as error:
                self._fail("victim", _names(list(running)), error)
        return self.inner.victim(running, view)

    def _use(self, inner: Policy) -> None:
        self.inner = inner
        self._shown = cast(Shown, inner)
        """What it is handed has all that it may use of a `Request` or a `View`."""
        self._kinds: dict[str, Kind] = {}
        self._usual: type | None = None
        """Ranks of this type need no second look, unless they are NaN."""
        # What the wrapped class says of its objects, said of this one.
        self.returns_to_front = inner.returns_to_front  # type: ignore[misc]
        self.is_dynamic = inner.is_dynamic  # type: ignore[misc]
        self.prefills_first = inner.prefills_first  # type: ignore[misc]

    def _check_kind(self, method: str, value: object) -> None:
        """Check that a method's values are of one kind: sorting mixed ones would fail, now or later."""
        kind = _kind(value)
        usual = self._kinds.setdefault(method, kind)
        if kind != usual:
            raise _Wrong(f"returned {_shown(value)}, and {_words(usual)} before: all must be comparable")
        if method == "rank" and kind in ("a number", "text"):
            self._usual = type(value)

    def _fail(self, method: str, subject: str, error: BaseException) -> None:
        """Let the fallback take over; raises PolicyError if there is none."""
        reason = str(error) if isinstance(error, _Wrong) else f"raised {_raised(error)}"
        failure = PolicyError(f"policy {self.name}: {method} of {subject} {reason}")
        if self.fallback is None:
            raise failure from error
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


def _kind(value: object) -> Kind:
    """The kind of a value; raises _Wrong for values that cannot be ordered."""
    if isinstance(value, tuple) and value:
        return tuple(map(_kind, value))
    if isinstance(value, str):
        return "text"
    if isinstance(value, int):
        return "a number"
    if isinstance(value, float) and not math.isnan(value):
        return "a number"
    raise _Wrong(f"returned {_shown(value)}: it must be a number, text or a tuple of them")


def _names(request_ids: list[str], most: int = 3) -> str:
    more = f" and {len(request_ids) - most} more" if len(request_ids) > most else ""
    return ", ".join(request_ids[:most]) + more


def _words(kind: Kind) -> str:
    return kind if isinstance(kind, str) else f"({', '.join(map(_words, kind))})"


def _shown(value: object) -> str:
    return _one_line([repr(value)])


def _raised(error: BaseException) -> str:
    """The error, and the line of the policy that it came from."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    where = f" (line {own[-1].lineno})" if own else ""
    return _one_line(traceback.format_exception_only(error)) + where


def _one_line(lines: Iterable[str]) -> str:
    text = " ".join(" ".join(lines).split())
    return text if len(text) <= 200 else text[:197] + "..."
