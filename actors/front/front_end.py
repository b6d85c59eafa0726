"""The FrontEnd: lets tokens reach their clients as late as the emulated server's own front end would.

It stands between the Schedulers and AsyncLLM where that time is known, and nowhere else. What this server's
own front end takes until a request is with its engine counts, and how late its timers ring: only the rest is
waited for. Laws: what it is told it passes on in order; what an engine said before it was lost is not passed
on after.
"""

from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from sundog.actors.front.async_llm import News
from sundog.actors.kernel.actor import Actor, ActorDied, Ref
from sundog.actors.kernel.clock import Event
from sundog.actors.messages import EngineDown, PolicyFailed, StepOutput

WEIGHT = 0.1
"""The weight of the newest request, or timer, in the mean of what requests took, or timers were late."""


@dataclass(frozen=True, slots=True)
class DueMessage:
    """A message that the FrontEnd schedules for itself: the time of the oldest message it keeps has come."""


@dataclass(slots=True)
class KeptMessage:
    """A message that is passed on when it is due; None once its engine is lost."""

    due_s: float
    """The time at which its client should have it; its timer is set earlier, as timers ring late."""
    message: StepOutput | PolicyFailed | None


class FrontEnd(Actor[StepOutput | PolicyFailed | News | DueMessage]):
    """Passes on what engines say `request_s` later, less what requests took here already."""

    def __init__(self, request_s: float) -> None:
        super().__init__("front-end")
        self._request_s = request_s
        self._own_s = self._late_s = 0.0
        self._kept: deque[KeptMessage] = deque()
        self._async_llm: Ref[StepOutput | PolicyFailed] | None = None

    def connect(self, async_llm: Ref[StepOutput | PolicyFailed]) -> None:
        """Learn the address of AsyncLLM before the FrontEnd starts."""
        self._async_llm = async_llm

    def took(self, seconds: float) -> None:
        """A request took so long here, on the run's clock, from its headers to its engine."""
        self._own_s += WEIGHT * (min(seconds, self._request_s) - self._own_s)

    @property
    def idle(self) -> bool:
        return not self._kept

    def handle(self, message: StepOutput | PolicyFailed | News | DueMessage) -> None:
        match message:
            case StepOutput():
                self._keep(message, message.end_times_s[-1])
            case PolicyFailed():
                self._keep(message, self.clock.now_s())
            case DueMessage():
                self._ring()
            case EngineDown():
                for kept in self._kept:
                    if kept.message is not None and kept.message.replica == message.replica:
                        kept.message = None
            case _:
                pass

    def _keep(self, message: StepOutput | PolicyFailed, begin_s: float) -> None:
        last_s = self._kept[-1].due_s if self._kept else 0.0
        due_s = max(begin_s + self._request_s - self._own_s, last_s)
        ring_s = due_s - self._late_s
        if ring_s <= self.clock.now_s() and not self._kept:
            return self._pass_on(message)
        self._kept.append(KeptMessage(due_s, message))
        self.schedule(ring_s, Event.ARRIVAL, DueMessage())

    def _ring(self) -> None:
        """Pass on the oldest message, and record the delay: wall timers count whole milliseconds."""
        kept = self._kept.popleft()
        late_s = self._late_s + WEIGHT * (self.clock.now_s() - kept.due_s)
        self._late_s = min(max(late_s, 0.0), self._request_s)
        self._pass_on(kept.message)

    def _pass_on(self, message: StepOutput | PolicyFailed | None) -> None:
        assert self._async_llm is not None
        if message is not None:
            with suppress(ActorDied):
                self._async_llm.tell(message)
