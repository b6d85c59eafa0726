"""A user's router policy, wrapped once: whatever it does wrong becomes one error with a name.

Our own are trusted and never wrapped. A wrapped one is shown requests that it cannot change, and what it
returns is checked: a score is a number, a choice is a replica that is up. A failure ends the run, unless
there is a fallback: then the policy alone ends.
"""

import copy
from collections.abc import Callable
from typing import cast

from actors.core.config import ConfigError
from actors.core.policies.answers import ANY, Wrong, raised, shown
from actors.core.policies.check import check_claim, check_memory, check_names, check_signature
from actors.core.policies.guard import PolicyError
from actors.core.policies.patience import MOST_SLOW_CALLS, SLOW_S
from actors.core.policies.read_only import ReadOnlySubmit
from actors.core.request import Submit
from actors.core.routers.fleet import Fleet
from actors.core.routers.policy import INDEXES, RouterPolicy


class GuardedRouter(RouterPolicy):
    """The policy `inner`, known to its author as `name`."""

    def __init__(self, inner: RouterPolicy, name: str) -> None:
        self.inner = inner
        self.name = name
        self.index = inner.index
        self.follows_steps = inner.follows_steps  # type: ignore[misc]  # said of this object
        self.fallback: RouterPolicy | None = None
        """Takes over when `inner` fails; None: its failure is raised."""
        self.on_failure: Callable[[PolicyError], None] = lambda error: None
        self._clock: Callable[[], float] | None = None
        self._num_slow = 0

    def replace_when_slow(self, clock: Callable[[], float]) -> None:
        """Let the policy fail that takes long to choose, by a clock in seconds."""
        self._clock = clock

    def new_memory(self) -> object:
        return self.inner.new_memory()

    def choose(self, request: Submit, fleet: Fleet) -> int:
        asked = "score" if type(self.inner).choose is RouterPolicy.choose else "choose"
        try:
            return self._in_time(cast(Submit, ReadOnlySubmit(request)), fleet, asked)
        except ANY as error:
            reason = str(error) if isinstance(error, Wrong) else f"raised {raised(error)}"
            failure = PolicyError(f"router {self.name}: {asked} of {request.request_id} {reason}")
            if self.fallback is None:
                raise failure from error
            self.inner, self.fallback = self.fallback, None
            fleet.memory = self.inner.new_memory()
            self.on_failure(failure)
            return self.inner.choose(request, fleet)

    def _in_time(self, request: Submit, fleet: Fleet, asked: str) -> int:
        start_s = 0.0 if self._clock is None else self._clock()
        replica = self._best(request, fleet) if asked == "score" else self.inner.choose(request, fleet)
        if type(replica) is not int or replica not in fleet.up:
            up = ", ".join(map(str, fleet.up))
            raise Wrong(f"returned {shown(replica)}: it must be a replica that is up ({up})")
        if self._clock is not None:
            took_s = self._clock() - start_s
            self._num_slow += took_s > SLOW_S
            if self._num_slow >= MOST_SLOW_CALLS:
                raise Wrong(
                    f"took {took_s:.1f} s, its call number {self._num_slow} of more than {SLOW_S:g} s"
                )
        return replica

    def _best(self, request: Submit, fleet: Fleet) -> int:
        """As the inherited `choose` does, of scores that are numbers."""
        scores = {}
        for replica in fleet.up:
            score = self.inner.score(request, replica, fleet)
            if isinstance(score, bool) or not isinstance(score, int | float) or score != score:
                raise Wrong(f"returned {shown(score)}: it must be a number")
            scores[replica] = (score, -fleet.num_requests(replica))
        return max(fleet.up, key=scores.__getitem__)


def guarded(policy: RouterPolicy) -> RouterPolicy:
    """The policy as a Router may use it: a user's is wrapped anew, ours is not."""
    if isinstance(policy, GuardedRouter):
        return GuardedRouter(copy.deepcopy(policy.inner), policy.name)
    if type(policy).__module__.startswith("actors.core.routers."):
        return policy
    return GuardedRouter(copy.deepcopy(policy), type(policy).__qualname__)


METHODS: dict[str, tuple[str, ...]] = {
    "score": ("request", "replica", "fleet"),
    "choose": ("request", "fleet"),
    "new_memory": (),
}
"""What a router policy may define, and what each is called with."""
KNOWN = (*METHODS, "index", "follows_steps")


def check_router(policy: RouterPolicy, what: str) -> None:
    """Raise ConfigError for what would be ignored, or would fail at its first call."""
    check_names(policy, what, KNOWN, "actors.core.routers.")
    for method, arguments in METHODS.items():
        check_signature(policy, what, method, arguments)
    check_claim(policy, what, "follows_steps")
    if policy.index not in INDEXES:
        raise ConfigError(f"{what}: index is {policy.index!r}: known are {', '.join(INDEXES)}")
    check_memory(policy, what, policy.new_memory, "fleet")
