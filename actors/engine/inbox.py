"""Messages that reached a Scheduler and have not taken effect, in order of arrival.

Law: before a plan all of them take effect. Before an update only aborts take effect, after the arrivals of
the requests they abort, so that these are reported like any other; the rest waits for the plan. After an
update, requests that will continue elsewhere are handed over, if that was ordered before the end of the step.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sundog.actors.core.records import dataclass
from sundog.actors.core.step.state import SchedulerState
from sundog.actors.kernel.actor import Reply
from sundog.actors.messages import (
    Abort,
    Batch,
    Blocked,
    Done,
    Finish,
    Freeze,
    HandOver,
    KvFetched,
    Pull,
    Refused,
    Reserved,
    ResetPrefixCache,
    StepResult,
    Submit,
    Withdraw,
)


class Tracer(Protocol):
    """Listener to each decision when it is made; it must not change anything."""

    def planned(self, batch: Batch, blocked: Blocked | None) -> None: ...

    def refused(self, finish: Finish) -> None: ...

    def aborted(self, abort: Abort, finished: Sequence[Finish]) -> None: ...

    def updated(self, result: StepResult, finished: Sequence[Finish]) -> None: ...


class Reset(NamedTuple):
    """Pending reset of the prefix cache, with its reply."""

    message: ResetPrefixCache
    reply: Reply[Done | Refused]


class Hold(NamedTuple):
    """Pending order to freeze or resume, with its reply."""

    message: Freeze
    reply: Reply[Done | Refused]


@dataclass(slots=True)
class PullDue:
    """Request that is to be fetched, and the reply for when it has blocks."""

    message: Pull
    reply: Reply[Reserved | Refused]


class LoadDone(NamedTuple):
    """Completion of a request's load from host memory."""

    request_id: str


Due = Submit | Abort | Reset | Hold | PullDue | KvFetched | Withdraw | LoadDone


class Inbox:
    """Unapplied messages for one scheduler's state."""

    __slots__ = ("_pulls", "_state", "_tracer", "held", "is_frozen", "leaving", "messages")

    def __init__(self, state: SchedulerState, tracer: Tracer | None) -> None:
        self._state = state
        self._tracer = tracer
        self.messages: list[Due] = []
        self.is_frozen = False
        """Whether no step may begin."""
        self.held: list[Reply[Done | Refused]] = []
        """Replies to send once no step is in flight."""
        self.leaving: list[tuple[HandOver, float]] = []
        """Orders to hand over a request, with the time of each."""
        self._pulls: dict[str, Reply[Reserved | Refused]] = {}
        """Replies that are due when a request has room to be fetched into."""

    @property
    def num_new(self) -> int:
        """Number of arrived requests that no plan has considered yet."""
        num_new = 0
        for message in self.messages:
            if isinstance(message, Submit):
                num_new += 1
        return num_new

    def put(self, message: Due) -> None:
        self.messages.append(message)

    def take_all(self) -> list[Finish]:
        """Apply everything before a plan; return the requests that were refused or aborted."""
        finished: list[Finish] = []
        for message in self.messages:
            match message:
                case Submit():
                    self._arrive(message, finished)
                case KvFetched():
                    self._state.fetched(message.request_ids)
                case PullDue():
                    self._state.pull(message.message.submit)
                    self._pulls[message.message.submit.request_id] = message.reply
                case Abort():
                    finished += self._abort(message)
                case Reset():
                    self._reset(message)
                case LoadDone():
                    self._state.loaded(message.request_id)
                case Withdraw():
                    self._withdraw(message)
                case Hold():
                    self.is_frozen = message.message.is_frozen
                    self.held.append(message.reply)
        self.messages.clear()
        return finished

    def take_aborts(self) -> list[Finish]:
        """Apply aborts alone before an update; return the requests aborted in the queue or before it."""
        messages, self.messages = self.messages, []
        finished: list[Finish] = []
        for message in messages:
            if isinstance(message, Abort):
                self._add_those_of(message)
                finished += self._abort(message)
            else:
                self.messages.append(message)
        return finished

    def _arrive(self, submit: Submit, finished: list[Finish]) -> None:
        refused = self._state.arrive(submit)
        if refused is not None:
            finished.append(refused)
            if self._tracer is not None:
                self._tracer.refused(refused)

    def _add_those_of(self, abort: Abort) -> None:
        kept: list[Due] = []
        for message in self.messages:
            if isinstance(message, Submit) and message.request_id in abort.request_ids:
                self._state.add(message)
            else:
                kept.append(message)
        self.messages = kept

    def _abort(self, abort: Abort) -> list[Finish]:
        finished = self._state.abort(abort.request_ids, abort.reason)
        if self._tracer is not None:
            self._tracer.aborted(abort, finished)
        return finished

    def hand_over(self, start_s: float, end_s: float) -> list[Finish]:
        """Hand over requests at the end of a step; return their ends on this engine.

        An order that came at the very end of the step waits for the next one, unless this one was also
        planned then: so the result does not depend on whether the step was part of a decode run.
        """
        finished, leaving = list[Finish](), self.leaving
        self.leaving = []
        for order, came_s in leaving:
            if (request := self._state.requests.get(order.request_id)) is None:
                continue
            is_due = came_s < end_s or came_s <= start_s
            moved = self._state.move_on(request, order.keeps_kv) if is_due else None
            if moved is None:
                self.leaving.append((order, came_s))
            else:
                finished.append(moved)
        return finished

    def _withdraw(self, withdraw: Withdraw) -> None:
        self._state.handovers.withdraw(withdraw.request_ids, self._state.kv)
        for name in withdraw.request_ids:
            if (pull := self._pulls.pop(name, None)) is not None:
                pull.set(Reserved(()))

    def reserve(self, is_blocked: bool) -> list[str]:
        """Allocate blocks for requests to be fetched, and reply; do nothing while requests here wait for
        blocks.

        Returns the requests whose fetch was cancelled.
        """
        state, gone = self._state, list[str]()
        for name in state.handovers.take_back():
            gone.append(name)
            self._pulls.pop(name).set(Reserved(()))
        if not is_blocked and len(state.running) < state.config.max_num_running:
            for request, block_ids in state.handovers.reserve(state.kv):
                self._pulls.pop(request.request_id).set(Reserved(block_ids))
        for name in state.handovers.decline():
            gone.append(name)
            self._pulls.pop(name).set(Refused("there is no room for it now"))
        return gone

    def tell_held(self) -> None:
        """Send the replies that were delayed until the last step has ended."""
        for reply in self.held:
            reply.set(Done())
        self.held.clear()

    def _reset(self, reset: Reset) -> None:
        message = reset.message
        if message.begins_anew:
            self._state.begin_anew()
        if self._state.reset_prefix_cache(reset_running=message.reset_running):
            return reset.reply.set(Done())
        pool = self._state.kv.pool
        held = pool.num_blocks - 1 - pool.num_free
        reset.reply.set(Refused(f"{held} blocks are held by requests: try again when none run"))
