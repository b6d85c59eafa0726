"""FrontQueue: simulated queue of requests at a server's API processes.

An API process is an event loop that reads a request, applies the chat template, tokenises the prompt, and
streams the tokens of other requests, one thing at a time. Requests are distributed over the processes in
turn, and reach the engine when their process has finished with them.

Laws: the requests of a process leave it in order of arrival, each when its service has ended; an abort does
not overtake its request. If a client leaves, its request is forwarded at once, for the engine to end it, and
the time reserved for it stays reserved.
"""

from sundog.actors.config.front_costs import FrontCosts
from sundog.actors.core.records import dataclass
from sundog.actors.kernel.actor import Actor, ActorDied, Handled, Ref, Tap, answer
from sundog.actors.kernel.clock import Event, Timer
from sundog.actors.messages import (
    Abort,
    ChangeAdapters,
    Freeze,
    HandOver,
    KvFetched,
    PolicyFailed,
    Pull,
    StepOutput,
    Submit,
    ToEngine,
    Withdraw,
)

WEIGHT = 0.1
"""Weight of the newest timer in the moving average of timer delays."""


@dataclass(slots=True)
class HeadStart:
    """Two means of an emulating server: the time spent on a request before it reaches the queue, and the
    delay of timers.
    """

    lead_s: float = 0.0
    late_s: float = 0.0

    def rang(self, late_s: float, most_s: float) -> None:
        """Record the delay of a timer, at most `most_s`; timers on the real clock count whole
        milliseconds.
        """
        mean_s = self.late_s + WEIGHT * (late_s - self.late_s)
        self.late_s = min(max(mean_s, 0.0), most_s)


class FrontServed(Timer):
    """Message of the FrontQueue to itself: an API process has finished a request."""

    __slots__ = ("due_s", "queue", "submit")

    def __init__(self, queue: "FrontQueue", submit: Submit, due_s: float) -> None:
        super().__init__()
        self.queue, self.submit, self.due_s = queue, submit, due_s

    def call(self) -> None:
        self.queue.tell_self(self)


class FrontQueue(Actor[ToEngine | StepOutput | PolicyFailed | FrontServed]):
    """Actor that simulates the API processes of a server, between the Router and the Scheduler."""

    def __init__(
        self, name: str, costs: FrontCosts, head_start: HeadStart | None = None, *, tap: Tap | None = None
    ) -> None:
        """With a `head_start`, the time already spent on requests is subtracted from their waits."""
        super().__init__(name, tap=tap)
        self._costs = costs
        self._head_start = head_start
        self._engine: Ref[ToEngine] | None = None
        self._free_s = [0.0] * costs.processes
        """Time at which each process is free for another request, in seconds."""
        self._next = 0
        self._inside: dict[str, Submit] = {}
        """Requests that wait for a process or are in one."""
        self._prompt: object = None
        """Latest prompt: choices of one request share it, so that it is tokenized once."""

    def connect(self, engine: Ref[ToEngine]) -> None:
        """Set the Scheduler to which requests are forwarded, before the FrontQueue starts."""
        self._engine = engine

    @property
    def idle(self) -> bool:
        return not self._inside

    @property
    def follows_steps(self) -> bool:
        """Whether the FrontQueue needs every StepOutput, because streaming takes time."""
        return self._costs.output_token > 0

    def handle(self, message: ToEngine | StepOutput | PolicyFailed | FrontServed) -> Handled:
        match message:
            case Submit():
                self._enter(message)
            case FrontServed():
                self._leave(message)
            case StepOutput():
                self._stream(message)
            case Abort():
                for name in message.request_ids:
                    self._hurry(name)
                self._pass_on(message)
            case HandOver():
                self._hurry(message.request_id)
                self._pass_on(message)
            case KvFetched() | Withdraw():
                self._pass_on(message)
            case Freeze():
                return answer(message, self._scheduler.request(message))
            case ChangeAdapters():
                return answer(message, self._scheduler.request(message))
            case Pull():
                return answer(message, self._scheduler.request(message))
            case PolicyFailed():
                pass
            case _:
                self.unknown(message)
        return None

    async def closed(self) -> None:
        self._scheduler.close()

    @property
    def _scheduler(self) -> Ref[ToEngine]:
        assert self._engine is not None
        return self._engine

    def _enter(self, submit: Submit) -> None:
        if submit.begun is not None or submit.refused is not None:  # it comes from an engine, or goes to none
            return self._pass_on(submit)
        costs, ahead, number = self._costs, self._head_start, self._next
        clock = self._clock or self.clock
        arrival_s, due_s = clock.now_s(), self._free_s[number]
        if ahead is not None:
            arrival_s -= ahead.lead_s
        if arrival_s > due_s:
            due_s = arrival_s
        prompt = submit.prompt_token_ids
        if prompt is None or prompt is not self._prompt:
            self._prompt = prompt
            due_s += costs.request + costs.prompt_token * submit.num_prompt_tokens
            self._free_s[number] = due_s + costs.response
            self._next = number + 1 if number + 1 < costs.processes else 0
        self._inside[submit.request_id] = submit
        ring_s = due_s if ahead is None else due_s - ahead.late_s
        clock.enter(ring_s, Event.ARRIVAL, self.name, FrontServed(self, submit, due_s))

    def _leave(self, served: FrontServed) -> None:
        if self._head_start is not None:
            self._head_start.rang(self.clock.now_s() - served.due_s, self._costs.request)
        submit = served.submit
        if self._inside.get(submit.request_id) is submit:  # its client is still there
            del self._inside[submit.request_id]
            submit.reached_s = served.due_s
            self._pass_on(submit)

    def _hurry(self, request_id: str) -> None:
        """Forward a request at once if it is still in the queue."""
        if (submit := self._inside.pop(request_id, None)) is not None:
            self._pass_on(submit)

    def _pass_on(self, message: Submit | Abort | HandOver | KvFetched | Withdraw) -> None:
        assert self._engine is not None
        try:
            self._engine.tell(message)
        except ActorDied:  # its end is on its way to the Router, and takes the request along
            return

    def _stream(self, output: StepOutput) -> None:
        """Assign each process its share of the tokens, to be streamed after its earlier ones."""
        batch, now_s = output.batch, self.clock.now_s()
        num_tokens = batch.num_decodes * len(output.end_times_s)
        num_tokens += sum([count for _, count in output.accepted])
        num_tokens += sum([chunk.samples for chunk in batch.chunks])
        each_s = num_tokens * self._costs.output_token / self._costs.processes
        self._free_s = [max(free_s, now_s) + each_s for free_s in self._free_s]
