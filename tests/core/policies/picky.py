"""User policies that read different attributes for different requests."""

from dataclasses import dataclass
from typing import Any, ClassVar
from zlib import crc32

from sundog.actors.core.policies import Policy, Rank, Request, View


@dataclass(frozen=True)
class Picky(Policy):
    """What a rank is drawn from follows from `seed` and the request; some look further with time."""

    is_dynamic: ClassVar[bool] = True

    seed: int = 0

    def new_memory(self) -> dict[str, Any]:
        return {"admitted": 0, "tenants": {}, "last": None}

    def admitted(self, request: Request, view: View) -> None:
        view.memory["admitted"] += 1
        view.memory["last"] = request

    def finished(self, request: Request, view: View) -> None:
        tenants = view.memory["tenants"]
        tenants[request.submit.tenant] = tenants.get(request.submit.tenant, 0) + view.num_output_tokens(
            request
        )

    def rank(self, request: Request, view: View) -> float:
        looks = LOOKS[int(len(LOOKS) * _number(self.seed, request.request_id, "look"))]
        return looks(request, view)

    def quota(self, request: Request, view: View) -> int | None:
        return 1 + len(view.waiting) % 3 if view.step % 7 == 0 else None


@dataclass(frozen=True)
class PickyByTenant(Picky):
    """Requests of a tenant stand in one line."""

    returns_to_front: ClassVar[bool] = True

    def rank(self, request: Request, view: View) -> float:
        tenant = request.submit.tenant
        if _number(self.seed, tenant) < 0.3:
            return 3.0 - view.has_waited(request, 3)
        if _number(self.seed, tenant) < 0.6:
            return float(view.memory["tenants"].get(tenant, 0) % 5)
        return _number(tenant, view.memory["admitted"] // 2) * 4

    def rank_key(self, request: Request, view: View) -> tuple[str | None]:
        return (request.submit.tenant,)


@dataclass(frozen=True)
class Holding(Picky):
    """Ranks that say until when they hold, as long as others do, or for as long as the request waits."""

    is_dynamic: ClassVar[bool] = False

    def rank(self, request: Request, view: View) -> Rank | float:
        holds = HOLDS[int(len(HOLDS) * _number(self.seed, request.request_id, "hold"))]
        return holds(request, view)


@dataclass(frozen=True)
class HoldingByTenant(Holding):
    """Requests of a tenant stand in one line, and rank alike."""

    returns_to_front: ClassVar[bool] = True

    def rank(self, request: Request, view: View) -> Rank | float:
        tenant = request.submit.tenant
        if _number(self.seed, tenant) < 0.5:
            return _until_learned(request, view)
        turn_s = view.now_s // 3
        return Rank(_number(tenant, turn_s) * 4, until_s=3 * (turn_s + 1))

    def rank_key(self, request: Request, view: View) -> tuple[str | None]:
        return (request.submit.tenant,)


def _number(*key: object) -> float:
    return crc32(repr(key).encode()) / 2**32


def _still(request: Request, view: View) -> float:
    return view.random(request) * 4


def _slack(request: Request, view: View) -> float:
    slack_s = (request.submit.slo_ttft_s or 3.0) + request.submit.arrival_s - view.now_s
    return slack_s if slack_s > 0 else 9.0


def _deadline(request: Request, view: View) -> float:
    due_s = (request.submit.slo_ttft_s or 3.0) + request.submit.arrival_s
    if not view.is_past(due_s):
        return 2.0
    return 0.5 if view.is_past(due_s + 2) else 3.0


def _patience(request: Request, view: View) -> float:
    if not view.has_waited(request, 4):
        return 2.5
    return _learned(request, view) if view.has_waited(request, 9) else 0.25


def _steps(request: Request, view: View) -> float:
    return view.num_waited_steps(request) % 5


def _learned(request: Request, view: View) -> float:
    return view.memory["tenants"].get(request.submit.tenant, 0) % 5


def _last(request: Request, view: View) -> float:
    last = view.memory["last"]
    return 1.0 if last is None else last.num_computed_tokens % 5


def _own(request: Request, view: View) -> float:
    return (view.num_output_tokens(request) + request.num_preemptions) % 5


def _space(request: Request, view: View) -> float:
    return view.num_free_blocks % 5


def _others(request: Request, view: View) -> float:
    return sum(view.num_output_tokens(other) for other in view.running.values()) % 5


def _queue(request: Request, view: View) -> float:
    return view.num_waiting % 5


def _until_due(request: Request, view: View) -> Rank | float:
    due_s = (request.submit.slo_ttft_s or 3.0) + request.submit.arrival_s
    if view.now_s < due_s:
        return Rank(2.0, until_s=due_s)
    return Rank(3.0, until_s=due_s + 2) if view.now_s < due_s + 2 else 0.5


def _until_patient(request: Request, view: View) -> Rank | float:
    num_waited = view.num_waited_steps(request)
    if num_waited < 4:
        return Rank(2.5, until_step=view.step + 4 - num_waited)
    rank = _until_learned(request, view)
    return rank if num_waited >= 9 else Rank(rank.value, until_step=view.step + 1, until_memory_changes=True)


def _until_learned(request: Request, view: View) -> Rank:
    return Rank(_learned(request, view), until_memory_changes=True)


def _until_given_tokens(request: Request, view: View) -> Rank:
    return Rank(_own(request, view))


def _moving(request: Request, view: View) -> Rank:
    return Rank(2.0 + request.submit.arrival_s / 3, until_s=view.now_s // 5 * 5 + 5, per_s=-1 / 3)


LOOKS = (_still, _slack, _deadline, _patience, _steps, _learned, _last, _own, _space, _others, _queue)
HOLDS = (_still, _until_due, _until_patient, _until_learned, _until_given_tokens, _moving)
