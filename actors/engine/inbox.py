"""Messages that have reached a Scheduler and have not taken effect yet, in order of arrival.

Law: before a plan everything takes effect. Before an update only aborts do, and with them the arrival of the
requests that they end, so that each of these is reported like any other; the rest waits for the plan. After
an update requests are handed over that are to go on elsewhere, if the order came before the step's end.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

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
    """A listener to each decision at the moment it is taken; it changes nothing."""

    def planned(self, batch: Batch, blocked: Blocked | None) -> None: ...

    def refused(self, finish: Finish) -> None: ...

    def aborted(self, abort: Abort, finished: Sequence[Finish]) -> None: ...

    def updated(self, result: StepResult, finished: Sequence[Finish]) -> None: ...


class Reset(NamedTuple):
    """A reset of the prefix cache that is due, and where its answer goes."""

    message: ResetPrefixCache
    reply: Reply[Done | Refused]


class Hold(NamedTuple):
    """An order to freeze or go on that is due, and where its answer goes."""

    message: Freeze
    reply: Reply[Done | Refused]


class PullDue(NamedTuple):
    """A request that is to be fetched, and where the answer goes once it has room."""

    message: Pull
    reply: Reply[Reserved | Refused]


class LoadDone(NamedTuple):
    """The blocks of a request have come from the host's memory."""

    request_id: str


Due = Submit | Abort | Reset | Hold | PullDue | KvFetched | Withdraw | LoadDone


class Inbox:
    """Messages for one scheduler's state."""

    __slots__ = ("_messages", "_pulls", "_state", "_tracer", "held", "is_frozen", "leaving")

    def __init__(self, state: SchedulerState, tracer: Tracer | None) -> None:
        self._state = state
        self._tracer = tracer
        self._messages: list[Due] = []
        self.is_frozen = False
        """True while no step may begin."""
        self.held: list[Reply[Done | Refused]] = []
        """Answers that are due when no step runs any more."""
        self.leaving: list[tuple[HandOver, float]] = []
        """Orders to hand over a request, and when each came."""
        self._pulls: dict[str, Reply[Reserved | Refused]] = {}
        """Answers that are due when a request has room to be fetched into."""

    @property
    def is_empty(self) -> bool:
        return not self._messages

    @property
    def num_new(self) -> int:
        """Requests that no plan has seen yet."""
        messages = self._messages
        return sum([isinstance(message, Submit) for message in messages]) if messages else 0

    def put(self, message: Due) -> None:
        self._messages.append(message)

    def take_all(self) -> list[Finish]:
        """Apply everything, before a plan; returns the requests that were refused or aborted."""
        finished: list[Finish] = []
        for message in self._messages:
            if isinstance(message, Submit):
                self._arrive(message, finished)
            elif isinstance(message, Abort):
                finished += self._abort(message)
            elif isinstance(message, Reset):
                self._reset(message)
            elif isinstance(message, PullDue):
                self._state.pull(message.message.submit)
                self._pulls[message.message.submit.request_id] = message.reply
            elif isinstance(message, KvFetched):
                self._state.fetched(message.request_ids)
            elif isinstance(message, LoadDone):
                self._state.loaded(message.request_id)
            elif isinstance(message, Withdraw):
                self._withdraw(message)
            else:
                self.is_frozen = message.message.is_frozen
                self.held.append(message.reply)
        self._messages.clear()
        return finished

    def take_aborts(self) -> list[Finish]:
        """Apply aborts alone, before an update; returns requests aborted in the queue or before it."""
        messages, self._messages = self._messages, []
        finished: list[Finish] = []
        for message in messages:
            if isinstance(message, Abort):
                self._add_those_of(message)
                finished += self._abort(message)
            else:
                self._messages.append(message)
        return finished

    def _arrive(self, submit: Submit, finished: list[Finish]) -> None:
        refused = self._state.arrive(submit)
        if refused is not None:
            finished.append(refused)
            if self._tracer is not None:
                self._tracer.refused(refused)

    def _add_those_of(self, abort: Abort) -> None:
        kept: list[Due] = []
        for message in self._messages:
            if isinstance(message, Submit) and message.request_id in abort.request_ids:
                self._state.add(message)
            else:
                kept.append(message)
        self._messages = kept

    def _abort(self, abort: Abort) -> list[Finish]:
        finished = self._state.abort(abort.request_ids, abort.reason)
        if self._tracer is not None:
            self._tracer.aborted(abort, finished)
        return finished

    def hand_over(self, start_s: float, end_s: float) -> list[Finish]:
        """Hand over the requests that can be, at the end of a step; returns how they end here.

        An order that came as the step ended waits for the next one, unless this one was planned then, too:
        so it does not matter whether the step was one of a run.
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
        """Give blocks to requests that are to be fetched, and say so, unless others wait here for them.

        Returns those that are not to be fetched any more.
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
        """Answer the messages that wait for the last step to end."""
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
