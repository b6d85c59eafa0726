"""Guard of a user's router policy: checks that a score is a number and a choice is a replica that is up."""

import operator

from sundog.actors.core.policies.answers import WrongAnswer, exact_refusal, exact_score, printed
from sundog.actors.core.policies.guard import ANY, Guard, own_guard
from sundog.actors.core.policies.shown import ReadOnlySubmit
from sundog.actors.core.queue.policy import Refusal
from sundog.actors.core.request import Submit
from sundog.actors.core.routers import ROUTERS
from sundog.actors.core.routers.policy import Fleet, RouterPolicy, Unfinished


class GuardedRouter(Guard[RouterPolicy], RouterPolicy):
    """A user's router policy; its requests are read-only."""

    word = "router"

    def _use(self, inner: RouterPolicy) -> None:
        self.inner = inner
        self.index = inner.index
        self.follows_steps = inner.follows_steps  # type: ignore[misc]  # said of this object
        self.moves_every_s = inner.moves_every_s  # type: ignore[misc]
        self.stale_s = inner.stale_s  # type: ignore[misc]

    def new_memory(self) -> object:
        return self.inner.new_memory()

    def choose(self, request: Submit, fleet: Fleet) -> int | None:
        if self.failure is None:
            gives_scores = type(self.inner).choose is RouterPolicy.choose
            call = self._best if gives_scores else self.inner.choose
            try:
                return _up_or_held(self._timed(call, ReadOnlySubmit(request), fleet), fleet)
            except ANY as error:
                self._failed("score" if gives_scores else "choose", request.request_id, error)
            fleet.memory = self.inner.new_memory()
        return self.inner.choose(request, fleet)

    def refuse(self, request: Submit, fleet: Fleet) -> Refusal | None:
        if self.failure is None:
            try:
                return exact_refusal(self._timed(self.inner.refuse, ReadOnlySubmit(request), fleet))
            except ANY as error:
                self._failed("refuse", request.request_id, error)
            fleet.memory = self.inner.new_memory()
        return None

    def moves(self, fleet: Fleet) -> list[tuple[Unfinished, int]]:
        if self.failure is None:
            try:
                return _checked_moves(self._timed(lambda: list(self.inner.moves(fleet))), fleet)
            except ANY as error:
                self._failed("moves", "the fleet", error)
            fleet.memory = self.inner.new_memory()
        return []

    def _best(self, request: Submit, fleet: Fleet) -> int:
        scores = {}
        for replica in fleet.up:
            score = exact_score(self.inner.score(request, replica, fleet))
            scores[replica] = (score, -fleet.num_requests(replica))
        return max(fleet.up, key=scores.__getitem__)


def _up_or_held(replica: object, fleet: Fleet) -> int | None:
    """Return the replica if it may be chosen, or None if the policy may hold the request."""
    if replica is None and fleet.role != "decode":
        if any(map(fleet.num_requests, range(fleet.num_replicas))):
            return None
        raise WrongAnswer(
            "returned None, which holds it, while no replica has a request: it would wait for ever"
        )
    if hasattr(replica, "__index__") and not isinstance(replica, bool):
        found = int(operator.index(replica))
        if found in fleet.up:
            return found
    up = ", ".join(map(str, fleet.up))
    raise WrongAnswer(f"returned {printed(replica)}: it must be a replica that is up ({up})")


def _checked_moves(moves: list[object], fleet: Fleet) -> list[tuple[Unfinished, int]]:
    """Return the moves if each is of a different unfinished request to another replica that is up."""
    found: dict[str, tuple[Unfinished, int]] = {}
    for move in moves:
        if not (isinstance(move, tuple) and len(move) == 2 and isinstance(move[0], Unfinished)):
            raise WrongAnswer(f"yielded {printed(move)}: give pairs of one of fleet.requests and a replica")
        name, replica = move[0].request_id, move[1]
        if name in found:
            raise WrongAnswer(f"moved {name} twice")
        if not fleet.can_move(name, move[0].replica):
            raise WrongAnswer(f"moved {name}, which is not on replica {move[0].replica} any more")
        if replica not in fleet.up or replica == move[0].replica or isinstance(replica, bool):
            others = ", ".join(str(each) for each in fleet.up if each != move[0].replica)
            raise WrongAnswer(f"moved {name} to {printed(replica)}: it must be another that is up ({others})")
        found[name] = move[0], int(replica)
    return list(found.values())


def guarded_router(policy: RouterPolicy) -> RouterPolicy:
    """Wrap a user's router policy; return a built-in one unchanged."""
    return own_guard(policy, GuardedRouter, ROUTERS.values())
