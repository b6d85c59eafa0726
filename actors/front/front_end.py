"""FrontEnd: delays tokens by the front-end time of the emulated server.

It stands between the Schedulers and AsyncLLM if that time is known. The time that this server's own front
end takes until a request reaches its engine, and the lateness of its timers, are subtracted, first in the
FrontQueues of the engines, if there are any. Laws: messages are forwarded in order; messages of an engine
from before its loss are not forwarded after it.
"""

from collections import deque
from contextlib import suppress

from sundog.actors.core.records import dataclass
from sundog.actors.engine.front_queue import HeadStart
from sundog.actors.front.async_llm import News
from sundog.actors.kernel.actor import Actor, ActorDied, Ref
from sundog.actors.kernel.clock import Event
from sundog.actors.messages import EngineDown, PolicyFailed, StepOutput

WEIGHT = 0.1
"""Weight of the newest value in the running means of request times and timer delays."""


@dataclass(frozen=True, slots=True)
class DueMessage:
    """Message of the FrontEnd to itself: it is time to forward the oldest delayed message."""


@dataclass(slots=True)
class KeptMessage:
    """Message to forward at its time; None once its engine is lost."""

    due_s: float
    """Time at which the client should get the message; the timer is set earlier, because timers are late."""
    message: StepOutput | PolicyFailed | None


class FrontEnd(Actor[StepOutput | PolicyFailed | News | DueMessage]):
    """Forwards engines' messages `request_s` later, less the time that requests already took here."""

    def __init__(self, request_s: float, queued_s: float = 0.0) -> None:
        """Create the actor; a request has spent `queued_s` in a FrontQueue before."""
        super().__init__("front-end")
        self._request_s, self._queued_s = request_s, queued_s
        self.head_start = HeadStart()
        self._own_s = self._late_s = 0.0
        self._kept: deque[KeptMessage] = deque()
        self._async_llm: Ref[StepOutput | PolicyFailed] | None = None

    def connect(self, async_llm: Ref[StepOutput | PolicyFailed]) -> None:
        """Set the address of AsyncLLM before the FrontEnd starts."""
        self._async_llm = async_llm

    def took(self, seconds: float) -> None:
        """Record the seconds from a request's headers to its engine, on the run's clock."""
        most_s = self._request_s + self._queued_s
        self._own_s += WEIGHT * (min(seconds, most_s) - self._own_s)
        self.head_start.lead_s = min(self._own_s, self._queued_s)

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
        own_s = self._own_s - self.head_start.lead_s
        due_s = max(begin_s + self._request_s - own_s, last_s)
        ring_s = due_s - self._late_s
        if ring_s <= self.clock.now_s() and not self._kept:
            return self._pass_on(message)
        self._kept.append(KeptMessage(due_s, message))
        self.schedule(ring_s, Event.ARRIVAL, DueMessage())

    def _ring(self) -> None:
        """Forward the oldest message and record the timer's delay: real timers count whole milliseconds."""
        kept = self._kept.popleft()
        late_s = self._late_s + WEIGHT * (self.clock.now_s() - kept.due_s)
        self._late_s = min(max(late_s, 0.0), self._request_s)
        self._pass_on(kept.message)

    def _pass_on(self, message: StepOutput | PolicyFailed | None) -> None:
        assert self._async_llm is not None
        if message is not None:
            with suppress(ActorDied):
                self._async_llm.tell(message)
