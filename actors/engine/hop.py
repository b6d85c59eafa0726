"""The Hop: lets a simulated request take the time that the way to an engine core takes in a real server.

It stands between Router and Scheduler where that time is not zero, and nowhere else. Law: what it is told it
passes on in order.
"""

from contextlib import suppress
from dataclasses import dataclass

from actors.config.hop_costs import HopCosts
from actors.kernel.actor import Actor, ActorDied, Handled, Ref, Tap, answer
from actors.kernel.clock import Event
from actors.messages import Abort, Freeze, Submit


@dataclass(frozen=True, slots=True)
class Arrived:
    """The Hop tells itself that a message has come across."""

    message: Submit | Abort


class Hop(Actor[Submit | Abort | Freeze | Arrived]):
    """Passes on what it is told, later."""

    def __init__(
        self, name: str, costs: HopCosts, scheduler: Ref[Submit | Abort | Freeze], *, tap: Tap | None = None
    ) -> None:
        super().__init__(name, tap=tap)
        self._costs = costs
        self._scheduler = scheduler
        self._num_under_way = 0
        self._last_s = 0.0

    @property
    def idle(self) -> bool:
        return not self._num_under_way

    def handle(self, message: Submit | Abort | Freeze | Arrived) -> Handled:
        match message:
            case Submit():
                self._pass_on(message, self._costs.submit + self._costs.token * message.num_prompt_tokens)
            case Abort():
                self._pass_on(message, self._costs.submit)
            case Arrived():
                self._num_under_way -= 1
                with suppress(ActorDied):
                    self._scheduler.tell(message.message)
            case Freeze():
                return answer(message, self._scheduler.request(message))
            case _:
                self.unknown(message)
        return None

    async def closed(self) -> None:
        self._scheduler.close()

    def _pass_on(self, message: Submit | Abort, takes_s: float) -> None:
        self._last_s = max(self._last_s, self.clock.now_s() + takes_s)
        self._num_under_way += 1
        self.schedule(self._last_s, Event.ARRIVAL, Arrived(message))
