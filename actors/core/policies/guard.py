"""Guard around a user's policy or router, which turns every failure of its code into one named error.

Built-in policies are not guarded. A guarded policy gets read-only requests (`shown.py`), and its return
values are checked and copied (`answers.py`). A failure ends the run, unless there is a fallback policy: then
the fallback takes over and the queue is ranked again.
"""

import copy
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import ClassVar, Final, Generic, Self, TypeVar, cast

from sundog.actors.core.config import ConfigError
from sundog.actors.core.policies import POLICIES
from sundog.actors.core.policies.answers import (
    NUMBER,
    NUMBERS,
    Data,
    Kind,
    WrongAnswer,
    exact,
    exact_key,
    exact_quota,
    exact_rank,
    exact_refusal,
    kind_in_words,
    kind_of,
    names_of,
    printed,
    raised,
)
from sundog.actors.core.policies.shown import PolicyView, RequestView, RequestViews, shown
from sundog.actors.core.queue.policy import Policy, Rank, RankValue, Refusal, defines
from sundog.actors.core.queue.view import View
from sundog.actors.core.request import Request

P = TypeVar("P")
G = TypeVar("G")
Answer = TypeVar("Answer")

SLOW_S: Final = 1.0
"""Seconds from which a call counts as slow; every stream stands still during the call."""
MOST_SLOW_CALLS: Final = 3
"""Slow calls that are tolerated, since a single one may be the machine's fault."""
MANY_RANKS: Final = 1_000_000
"""Calls of a dynamic rank, over all replicas, after which a warning reports their cost."""
log = logging.getLogger("sundog.policy")
ANY = BaseException
"""Exceptions caught from user code: an `exit()` or KeyboardInterrupt ends the policy, not the server.
Policies run between two awaits, so no cancellation passes through.
"""


class PolicyError(ConfigError):
    """A failure of a user's policy, router, predictor or scaler.

    The message has one line: file and class, method, request and reason.

    Example:
        >>> import sundog
        >>> class Broken(sundog.Policy):
        ...     def rank(self, request, view):
        ...         return 1 / 0
        >>> sundog.replay("traces/chat-poisson-2rps-5min.jsonl.gz", gpu="h100", limit=5, policy=Broken)
        Traceback (most recent call last):
        sundog.PolicyError: Broken: rank raised ZeroDivisionError
    """


class Guard(Generic[P]):
    """Wrapper that calls `inner`, reported as `name`, until it fails and the fallback takes over."""

    word: ClassVar[str]

    def __init__(self, inner: P, name: str) -> None:
        self.inner = inner
        self.name = name
        self.fallback: P | None = None
        """Replacement after a failure of `inner`; None: the failure is raised."""
        self.failure: PolicyError | None = None
        self.on_failure: list[Callable[[PolicyError], None]] = []
        """Callbacks to run, in order, after the fallback took over."""
        self._clock: Callable[[], float] | None = None
        self._num_slow = 0
        self._use(inner)

    def _use(self, inner: P) -> None:
        self.inner = inner

    def for_replica(self) -> Self:
        """Return an independent copy for one replica."""
        return type(self)(copy.deepcopy(self.inner), self.name)

    def replace_when_slow(self, clock: Callable[[], float]) -> None:
        """Treat slow calls, measured by this clock in seconds, as a failure."""
        self._clock = clock

    def stalled(self, reason: str) -> None:
        """Fail the policy because no request makes progress under it."""
        self._fail(PolicyError(f"{self.word} {self.name}: {reason}"), None)

    def _timed(self, call: Callable[..., Answer], *arguments: object) -> Answer:
        """Return the result of a call; raise WrongAnswer after too many slow ones."""
        if self._clock is None:
            return call(*arguments)
        start_s = self._clock()
        answer = call(*arguments)
        took_s = self._clock() - start_s
        self._num_slow += took_s > SLOW_S
        if self._num_slow >= MOST_SLOW_CALLS:
            raise WrongAnswer(
                f"took {took_s:.1f} s, its call number {self._num_slow} of more than {SLOW_S:g} s"
            )
        return answer

    def _failed(self, method: str, subject: str, error: BaseException) -> None:
        reason = self._reason(error)
        self._fail(PolicyError(f"{self.word} {self.name}: {method} of {subject} {reason}"), error)

    def _reason(self, error: BaseException) -> str:
        return str(error) if isinstance(error, WrongAnswer) else f"raised {raised(error)}"

    def _fail(self, failure: PolicyError, cause: BaseException | None) -> None:
        """Switch to the fallback, or raise the failure if there is none."""
        if self.fallback is None:
            raise failure from cause
        self.failure = failure
        self._use(self.fallback)
        for tell in self.on_failure:
            tell(failure)


class GuardedPolicy(Guard[Policy], Policy):
    """Guard of a user's scheduling policy, one object per replica."""

    word = "policy"

    def __init__(self, inner: Policy, name: str) -> None:
        super().__init__(inner, name)
        self._num_asked = [0]
        """Number of calls of a dynamic rank, counted over all replicas."""

    def for_replica(self) -> Self:
        """Return a copy for one replica that shares only the count of rank calls."""
        twin = super().for_replica()
        twin._num_asked = self._num_asked
        return twin

    def show(self, view: View) -> None:
        """Set the state that the policy may read; called once by its scheduler."""
        self._view = cast(View, PolicyView(view))

    def _use(self, inner: Policy) -> None:
        self.inner = inner
        self._kinds: dict[str, Kind] = {}
        self.returns_to_front = inner.returns_to_front  # type: ignore[misc]  # said of this object
        self.is_dynamic = inner.is_dynamic  # type: ignore[misc]
        self.prefills_first = inner.prefills_first  # type: ignore[misc]
        self.pauses = inner.pauses  # type: ignore[misc]
        self._checks: dict[str, Callable[[object], int | None]] = {
            "quota": partial(exact_quota, least=0 if inner.pauses else 1),
            "sampled": lambda answer: None,
        }

    @property
    def token_weights(self) -> tuple[float, float] | None:
        return self.inner.token_weights

    def new_memory(self) -> object:
        return self.inner.new_memory()

    def _ask(self, method: str, request: Request, view: View, check: Callable[[object], Answer]) -> Answer:
        if self.failure is None:
            try:
                call, seen = getattr(self.inner, method), request.shown or shown(request, view)
                if self._clock is None:  # in a simulation nobody waits
                    return check(call(seen, self._view))
                return check(self._timed(call, seen, self._view))
            except ANY as error:
                self._failed(method, request.request_id, error)
        answer: Answer = getattr(self.inner, method)(request, view)
        return answer

    def ask_each(self, method: str, requests: Sequence[Request], view: View) -> list[int | None]:
        """Return the results of `quota` or `sampled` for several requests, timed as one call."""
        answers: list[int | None] = []
        if self.failure is None:
            call, own, check = getattr(self.inner, method), self._view, self._checks[method]

            def ask() -> None:
                for request in requests:
                    answer = call(request.shown or shown(request, view), own)
                    answers.append(None if answer is None else check(answer))

            try:
                self._timed(ask)
            except ANY as error:
                self._failed(method, requests[min(len(answers), len(requests) - 1)].request_id, error)
        instead = getattr(self.inner, method)
        return answers + [instead(request, view) for request in requests[len(answers) :]]

    def rank(self, request: Request, view: View) -> RankValue | Rank:
        if self.is_dynamic:
            self._num_asked[0] += 1
            if self._num_asked[0] == MANY_RANKS:
                log.warning(
                    "policy %s: rank was called %s times, because of is_dynamic: without it, return"
                    " Rank(value, per_s=…) for a rank that changes with time, or Rank(value, until_s=…),"
                    " which is computed again only when it expires (docs/policies.md)",
                    self.name,
                    f"{MANY_RANKS:,}",
                )
        return self._ask("rank", request, view, self._as_rank)

    def rank_key(self, request: Request, view: View) -> object:
        return self._ask("rank_key", request, view, exact_key)

    def urgency(self, request: Request, view: View) -> RankValue:
        """Return the request's urgency; all are equally urgent after a failure."""
        if self.failure is None:
            try:
                answer = exact(self._timed(self.inner.urgency, shown(request, view), self._view))
                return (0, self._of_one_kind("urgency", answer))
            except ANY as error:
                self._failed("urgency", request.request_id, error)
        return (-1,)

    def quota(self, request: Request, view: View) -> int | None:
        return self._ask("quota", request, view, self._checks["quota"])

    def refuse(self, request: Request, view: View) -> Refusal | None:
        view.num_memory_changes += 1
        return self._ask("refuse", request, view, exact_refusal)

    def admitted(self, request: Request, view: View) -> None:
        view.num_memory_changes += 1
        self._ask("admitted", request, view, lambda answer: None)

    def preempted(self, request: Request, view: View) -> None:
        view.num_memory_changes += 1
        self._ask("preempted", request, view, lambda answer: None)

    def finished(self, request: Request, view: View) -> None:
        view.num_memory_changes += 1
        self._ask("finished", request, view, lambda answer: None)

    def victim(self, running: dict[str, Request], view: View) -> Request:
        if self.failure is None:
            try:
                victim = self._timed(self.inner.victim, RequestViews(running, view), self._view)
                if isinstance(victim, RequestView) and running.get(victim.request_id) is victim._record:
                    return victim._record
                raise WrongAnswer(f"returned {printed(victim)}, which is no request that runs")
            except ANY as error:
                self._failed("victim", names_of(list(running)), error)
        return self.inner.victim(running, view)

    def _reason(self, error: BaseException) -> str:
        reason = super()._reason(error)
        is_of_none = isinstance(error, TypeError | AttributeError) and "'NoneType'" in reason
        if is_of_none and not defines(self.inner, "new_memory"):
            reason += ": view.memory is None until a new_memory() makes it"
        return reason

    def _as_rank(self, answer: object) -> RankValue | Rank:
        if isinstance(answer, Rank):
            rank = exact_rank(answer)
            self._of_one_kind("rank", cast(Data, rank.value))
            return rank
        return self._of_one_kind("rank", exact(answer))

    def _of_one_kind(self, method: str, value: Data) -> RankValue:
        """Return the value; raise WrongAnswer if its kind differs from earlier ones: mixed kinds cannot be
        sorted.
        """
        if type(value) in NUMBERS and self._kinds.get(method) == NUMBER:
            return cast(RankValue, value)
        kind = kind_of(value)
        usual = self._kinds.setdefault(method, kind)
        if kind != usual:
            before = kind_in_words(usual)
            raise WrongAnswer(f"returned {printed(value)}, and {before} before: all must be comparable")
        return cast(RankValue, value)


def ask_each(policy: Policy, method: str, requests: Sequence[Request], view: View) -> list[int | None]:
    """Call `quota` or `sampled` for each request and return the results."""
    if method == "sampled":
        view.num_memory_changes += len(requests)
    if isinstance(policy, GuardedPolicy):
        return policy.ask_each(method, requests, view)
    ask = getattr(policy, method)
    return [ask(request, view) for request in requests]


def guarded(policy: Policy, name: str | None = None) -> Policy:
    """Wrap a user's policy for one replica; return a built-in one unchanged."""
    return own_guard(policy, GuardedPolicy, POLICIES.values(), name)


def own_guard(
    found: G, guard: Callable[[G, str], G], built_in: Iterable[object], name: str | None = None
) -> G:
    """Return a new guard of `found`, which may be a guard already; return a built-in one unchanged."""
    if isinstance(found, Guard):
        return cast(G, found.for_replica())
    if type(found) in built_in:
        return found
    return guard(copy.deepcopy(found), name or type(found).__qualname__)
