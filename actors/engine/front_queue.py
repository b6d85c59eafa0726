"""FrontQueue: simulated queue of requests at a server's API processes.

An API process is an event loop that reads a request, applies the chat template, tokenises the prompt, and
streams the tokens of other requests, one thing at a time. Wherever the handler of a request waits (for its
body, for the tokenizer), the others that are ready take their turns: of many that come together, the first
reaches the engine when all have gone through all stages but the last. Requests are distributed over the
processes in turn.

Laws: a process is never idle while a request is in it; requests of equal length leave it in order of arrival;
an abort does not overtake its request. If a client leaves, its request is forwarded at once, for the engine
to end it, and the time reserved for it stays reserved.
"""

from collections import deque

from sundog.actors.config.front_costs import FrontCosts
from sundog.actors.core.records import dataclass
from sundog.actors.kernel.actor import Actor, ActorDied, Handled, Ref, Tap, answer
from sundog.actors.kernel.clock import ARRIVAL, Timer
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
SAME_S = 1e-9
"""Times that differ by less are the same, summed in another order."""


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


class FrontTurn:
    """A request in an API process: the seconds of a stage, and the number of stages that have not ended.

    Choices of one request share a turn, for they are read once. Without a request it is tokens that are
    streamed.
    """

    __slots__ = ("left", "stage_s", "submits")

    def __init__(self, submits: list[Submit], stage_s: float, left: int) -> None:
        self.submits, self.stage_s, self.left = submits, stage_s, left


class ApiProcess(Timer):
    """One API process, an event loop; and the message to the FrontQueue that a turn may have ended there.

    Each turn takes a stage, and goes behind the others until it has taken all. `due_s` is the time at which
    one ends unless another comes meanwhile, which can only delay it: the timer rings then, looks, and is set
    again.
    """

    __slots__ = ("alone", "delayed", "due_s", "free_s", "queue", "turns")

    def __init__(self, queue: "FrontQueue") -> None:
        super().__init__()
        self.queue = queue
        self.alone: FrontTurn | None = None
        """FrontTurn that takes all its stages at once, for nobody waits; the queue is empty then."""
        self.turns: deque[FrontTurn] = deque()
        """Two turns or more, or the last one of those; the first is under way."""
        self.free_s = 0.0
        """Time at which the stage of the first turn began, or at which the process was free."""
        self.due_s = 0.0
        self.delayed = False
        """Whether a turn came since `due_s` was found."""

    def call(self) -> None:
        self.queue.tell_self(self)

    def wait(self, turn: FrontTurn, now_s: float) -> None:
        """Put a turn behind those that are ready now."""
        if self.alone is not None:
            self.turns.append(self.alone)
            self.alone = None
        self.advance(now_s)
        self.turns.append(turn)
        self.delayed = True

    def advance(self, now_s: float) -> None:
        """Take the stages that have ended by now, but no turn's last one."""
        turns = self.turns
        while (first := turns[0]).left > 1 and self.free_s + first.stage_s <= now_s:
            self.free_s += first.stage_s
            first.left -= 1
            turns.rotate(-1)

    def next_end_s(self) -> float:
        """Return the time at which a turn ends next: the first one of those with the fewest stages left."""
        least, place = self.turns[0].left, 0
        if least > 1:
            for number, turn in enumerate(self.turns):
                if turn.left < least:
                    least, place = turn.left, number
        end_s = self.free_s
        for number, turn in enumerate(self.turns):
            if number <= place or least > 1:
                end_s += turn.stage_s * (least if number <= place else least - 1)
            else:
                break
        return end_s

    def end(self) -> FrontTurn:
        """Take all stages until `due_s`, and return the turn that has ended."""
        turns = self.turns
        while (turn := turns[0]).left > 1:
            turn.left -= 1
            turns.rotate(-1)
        turn.left = 0
        self.free_s = self.due_s
        return turns.popleft()


class FrontQueue(Actor[ToEngine | StepOutput | PolicyFailed | ApiProcess]):
    """Actor that simulates the API processes of a server, between the Router and the Scheduler."""

    def __init__(
        self, name: str, costs: FrontCosts, head_start: HeadStart | None = None, *, tap: Tap | None = None
    ) -> None:
        """With a `head_start`, the time already spent on requests is subtracted from their waits."""
        super().__init__(name, tap=tap)
        self._costs = costs
        self._request_s, self._prompt_token_s = costs.request, costs.prompt_token
        self._num_stages = costs.stages
        self._head_start = head_start
        self._engine: Ref[ToEngine] | None = None
        self._processes = [ApiProcess(self) for _ in range(costs.processes)]
        self._next = 0
        self._inside: dict[str, Submit] = {}
        """Requests that wait for a process or are in one."""
        self._prompt: object = None
        """Latest prompt: choices of one request share it, so that it is tokenized once."""
        self._latest: FrontTurn | None = None
        """FrontTurn of the latest prompt."""

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

    def handle(self, message: ToEngine | StepOutput | PolicyFailed | ApiProcess) -> Handled:
        match message:
            case Submit():
                self._enter(message)
            case ApiProcess():
                self._look(message)
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
        self._inside[submit.request_id] = submit
        prompt, latest = submit.prompt_token_ids, self._latest
        if prompt is not None and prompt is self._prompt and latest is not None and latest.left:
            latest.submits.append(submit)
            return
        ahead, number = self._head_start, self._next
        self._next = number + 1 if number + 1 < len(self._processes) else 0
        process = self._processes[number]
        request_s = self._request_s + self._prompt_token_s * submit.num_prompt_tokens
        turn = FrontTurn([submit], request_s / self._num_stages, self._num_stages)
        self._prompt, self._latest = prompt, turn
        now_s = (self._clock or self.clock).now_s()
        if ahead is not None:
            now_s -= ahead.lead_s
        if process.alone is not None or process.turns:
            process.wait(turn, now_s)
            return
        process.alone = turn
        if now_s > process.free_s:
            process.free_s = now_s
        self._set(process, process.free_s + request_s)

    def _set(self, process: ApiProcess, due_s: float) -> None:
        """Set the timer of a process to the next end of a turn."""
        clock, ahead = self._clock or self.clock, self._head_start
        process.due_s, process.delayed = due_s, False
        clock.enter(due_s if ahead is None else due_s - ahead.late_s, ARRIVAL, self.name, process)

    def _look(self, process: ApiProcess) -> None:
        due_s = process.due_s
        if self._head_start is not None:
            self._head_start.rang(self.clock.now_s() - due_s, self._costs.request)
        if process.delayed:
            process.advance(due_s)
            if (end_s := process.next_end_s()) > due_s + SAME_S:
                return self._set(process, end_s)
        if (turn := process.alone) is None:
            turn = process.end()
        else:
            process.alone, process.free_s, turn.left = None, due_s, 0
        submits = turn.submits
        if submits:
            process.free_s += self._costs.response
        if process.turns:
            self._set(process, process.next_end_s())
        for submit in submits:
            if self._inside.get(submit.request_id) is submit:  # its client is still there
                del self._inside[submit.request_id]
                submit.reached_s = due_s
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
        for process in self._processes:
            if process.alone is not None or process.turns:
                process.wait(FrontTurn([], each_s, 1), now_s)
            else:
                process.free_s = max(process.free_s, now_s) + each_s
