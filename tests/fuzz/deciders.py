"""Unusual user policies, routers and scalers for random configurations."""

from dataclasses import dataclass
from typing import ClassVar

from sundog.actors.core.policies import Policy, Refusal, Request, View
from sundog.actors.core.routers import Fleet, RouterPolicy, Submit, Unfinished
from sundog.actors.core.scalers import ScaledFleet, Scaler

# --- policies ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pausing(Policy):
    """Gives requests of any state nothing in some steps, and a few tokens of a prompt in others."""

    pauses: ClassVar[bool] = True
    share: float = 0.3

    def quota(self, request: Request, view: View) -> int | None:
        number = view.random(request, view.step)
        return 0 if number < self.share else 1 + int(40 * number)


@dataclass(frozen=True)
class Nibbling(Policy):
    """Lets prompts be computed in small parts."""

    most: int = 24

    def quota(self, request: Request, view: View) -> int | None:
        return self.most


@dataclass(frozen=True)
class Whims(Policy):
    """Another order in each step, of waiting and of running requests, and any victim."""

    is_dynamic: ClassVar[bool] = True

    def rank(self, request: Request, view: View) -> float:
        return view.random(request, view.step // 4)

    def urgency(self, request: Request, view: View) -> float:
        return view.random(request, "urgency")

    def victim(self, running: dict[str, Request], view: View) -> Request:
        return max(running.values(), key=lambda request: view.random(request, "victim", view.step))


@dataclass(frozen=True)
class Choosy(Policy):
    """Refuses a share of requests; prefills go first, and the preempted before others."""

    prefills_first: ClassVar[bool] = True
    returns_to_front: ClassVar[bool] = True
    share: float = 0.15

    def refuse(self, request: Request, view: View) -> Refusal | None:
        return Refusal("not this one", 0.5) if view.random(request, "refuse") < self.share else None

    def urgency(self, request: Request, view: View) -> int:
        return request.submit.priority


# --- routers -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Holds(RouterPolicy):
    """Holds requests until a replica has fewer than `most`."""

    most: int = 3

    def choose(self, request: Submit, fleet: Fleet) -> int | None:
        is_free = fleet.num_requests(fleet.idlest) < self.most
        return fleet.idlest if is_free or fleet.role == "decode" else None


@dataclass(frozen=True)
class Global(RouterPolicy):
    """At most `most` requests in the whole fleet; the others are held."""

    most: int = 4

    def choose(self, request: Submit, fleet: Fleet) -> int | None:
        if fleet.role == "decode":
            return fleet.idlest
        return fleet.idlest if sum(map(fleet.num_requests, range(fleet.num_replicas))) < self.most else None


@dataclass(frozen=True)
class Restless(RouterPolicy):
    """Moves requests of any state to any replica, again and again; may hold them, too."""

    moves_every_s: ClassVar[float] = 0.0
    share: float = 0.2
    most: int = 1000

    def choose(self, request: Submit, fleet: Fleet) -> int | None:
        is_free = fleet.num_requests(fleet.idlest) < self.most
        return fleet.idlest if is_free or fleet.role == "decode" else None

    def moves(self, fleet: Fleet) -> list[tuple[Unfinished, int]]:
        now, found = str(fleet.now_s), list[tuple[Unfinished, int]]()
        for source in fleet.up:
            others = [replica for replica in fleet.up if replica != source]
            for each in fleet.requests(source) if others else ():
                if fleet.random(each.request, now) < self.share:
                    found.append((each, others[int(fleet.random(each.request, "to", now) * len(others))]))
        return found


@dataclass(frozen=True)
class TurnsAway(RouterPolicy):
    """Refuses a share of requests, holds some for a while, and follows what replicas have cached."""

    follows_steps: ClassVar[bool] = True
    index: ClassVar = "events"  # type: ignore[misc]
    share: float = 0.1

    def refuse(self, request: Submit, fleet: Fleet) -> Refusal | None:
        return Refusal("turned away") if fleet.random(request, "refuse") < self.share else None

    def choose(self, request: Submit, fleet: Fleet) -> int | None:
        is_busy = any(map(fleet.num_requests, range(fleet.num_replicas)))
        if fleet.role != "decode" and is_busy and fleet.random(request, str(fleet.now_s)) < 0.5:
            return None
        return max(fleet.up, key=lambda replica: fleet.num_hit_tokens(request, replica))


@dataclass(frozen=True)
class Last(RouterPolicy):
    """The last replica that is up."""

    def choose(self, request: Submit, fleet: Fleet) -> int:
        return fleet.up[-1]


# --- scalers -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tide(Scaler):
    """Wants all replicas and the fewest by turns."""

    turn_s: float = 1.0

    def want(self, fleet: ScaledFleet) -> int:
        return 1 if int(fleet.now_s / self.turn_s) % 2 else 4096


@dataclass(frozen=True)
class TwoThenOne(Scaler):
    """Two replicas for ten seconds, then one."""

    def want(self, fleet: ScaledFleet) -> int:
        return 2 if fleet.now_s < 10 else 1


@dataclass(frozen=True)
class Wave(Scaler):
    """Two replicas, but one from 20 s to 60 s."""

    def want(self, fleet: ScaledFleet) -> int:
        return 1 if 20 < fleet.now_s < 60 else 2
