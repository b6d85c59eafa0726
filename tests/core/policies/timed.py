"""User policies that use times, count tokens, and pause."""

from dataclasses import dataclass
from typing import ClassVar

from sundog.actors.core.policies import Policy, Request, View


@dataclass(frozen=True)
class Clerk(Policy):
    """Writes down when tokens came."""

    def new_memory(self) -> list[tuple[str, float | None, float | None, int]]:
        return []

    def sampled(self, request: Request, view: View) -> None:
        times = view.first_token_s(request), view.last_token_s(request)
        view.memory.append((request.request_id, *times, view.num_output_tokens(request)))


class PausesOdd(Policy):
    """Whoever is called odd computes nothing in steps 4 to 6."""

    pauses: ClassVar[bool] = True

    def quota(self, request: Request, view: View) -> int | None:
        return 0 if request.request_id.startswith("odd") and 4 <= view.step <= 6 else None


class PausesAll(Policy):
    """Nobody computes anything after step 3."""

    pauses: ClassVar[bool] = True

    def quota(self, request: Request, view: View) -> int | None:
        return 0 if view.step > 3 else None


class Forgets(Policy):
    """Gives a quota of 0 without saying that it pauses."""

    def quota(self, request: Request, view: View) -> int | None:
        return 0


class Claims(Policy):
    """Says that it pauses in a number."""

    pauses: ClassVar[bool] = 1  # type: ignore[assignment]


class Ledger(Policy):
    """Notes whose blocks come and go."""

    def new_memory(self) -> list[tuple[str, str]]:
        return []

    def admitted(self, request: Request, view: View) -> None:
        view.memory.append((request.request_id, "runs"))

    def preempted(self, request: Request, view: View) -> None:
        assert request.request_id not in view.running and request.num_computed_tokens == 0
        view.memory.append((request.request_id, "waits again"))

    def finished(self, request: Request, view: View) -> None:
        view.memory.append((request.request_id, "ended"))
