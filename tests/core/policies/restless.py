"""User policies whose answers may change at every step with anything they can see."""

from dataclasses import dataclass
from typing import ClassVar
from zlib import crc32

from sundog.actors.core.policies import Policy, Refusal, Request, View


@dataclass(frozen=True)
class Still(Policy):
    """What each answer turns with follows from `seed`; ranks are asked once, urgency again and again."""

    seed: int = 0

    def new_memory(self) -> list[int]:
        return [0]

    def admitted(self, request: Request, view: View) -> None:
        view.memory[0] += 1

    def preempted(self, request: Request, view: View) -> None:
        view.memory[0] += 3 + view.num_output_tokens(request)

    def finished(self, request: Request, view: View) -> None:
        view.memory[0] += view.num_output_tokens(request)

    def rank(self, request: Request, view: View) -> int:
        return int(5 * self.answer("rank", request, view))

    def urgency(self, request: Request, view: View) -> int:
        return int(4 * self.answer("urgency", request, view))

    def victim(self, running: dict[str, Request], view: View) -> Request:
        return max(running.values(), key=lambda request: self.answer("victim", request, view))

    def answer(self, what: str, request: Request, view: View) -> float:
        """A number from 0 to 1, 1 excluded."""
        num_output_tokens = [view.num_output_tokens(other) for other in view.running.values()]
        seen = (
            None,
            view.now_s,
            view.step,
            view.num_free_blocks,
            (view.num_waiting, len(view.running)),
            view.num_waited_steps(request) // 3,
            (view.num_output_tokens(request) // 2, sum(num_output_tokens)),
            (view.memory[0], view.now_s // 2),
            view.first_token_s(request),
            view.last_token_s(request),
            view.token_due_s(request) - view.now_s,
        )
        chosen = seen[int(len(seen) * _number(self.seed, what))]
        return _number(self.seed, what, request.request_id, chosen)


@dataclass(frozen=True)
class Moving(Still):
    """Ranks turn, too."""

    is_dynamic: ClassVar[bool] = True


@dataclass(frozen=True)
class Sparing(Still):
    """Quotas turn; what comes may be refused."""

    def quota(self, request: Request, view: View) -> int | None:
        return int(9 * self.answer("quota", request, view)) or None

    def refuse(self, request: Request, view: View) -> Refusal | None:
        return Refusal("no", 1.0) if self.answer("refuse", request, view) < 0.2 else None


@dataclass(frozen=True)
class Counting(Moving):
    """Memory turns with every token."""

    def sampled(self, request: Request, view: View) -> None:
        view.memory[0] += 1 if view.last_token_s(request) == view.now_s else 1000


@dataclass(frozen=True)
class Pausing(Counting):
    """Quotas turn, and in three of four steps some are 0."""

    pauses: ClassVar[bool] = True

    def quota(self, request: Request, view: View) -> int | None:
        quota = int(9 * self.answer("quota", request, view))
        return quota if view.step % 4 else quota or None


@dataclass(frozen=True)
class Everything(Sparing):
    """All at once, and prefills before decodes."""

    is_dynamic: ClassVar[bool] = True
    prefills_first: ClassVar[bool] = True
    returns_to_front: ClassVar[bool] = True


def _number(*key: object) -> float:
    return crc32(repr(key).encode()) / 2**32
