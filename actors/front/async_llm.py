"""AsyncLLM: the life of a request, from arrival to end: tokenise, submit, detokenise, stream, cancel.

Laws: an accepted request ends with exactly one last delta, and its blocks are free within a step after its
client has left. The engine never waits for a reader. If an engine is lost, a request whose reader has
received nothing is submitted again; others end with an error.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from sundog.actors.config import EngineConfig
from sundog.actors.core.queue.policy import defines
from sundog.actors.core.routers import RouterPolicy
from sundog.actors.front.active_request import LOST, ActiveRequest, Families, ids_of, last_delta
from sundog.actors.front.health import ReplicaHealth
from sundog.actors.front.intake import SHORT, Intake, Readings, Started
from sundog.actors.kernel.actor import Actor, Handled, Ref, Reply, Tap, answer
from sundog.actors.kernel.stream import Delta, DeltaStream
from sundog.actors.messages import (
    Abort,
    Accepted,
    Cancel,
    ChangeAdapters,
    CheckHealth,
    Done,
    Drain,
    EngineDown,
    EngineNews,
    EngineUp,
    Finish,
    Freeze,
    Generate,
    PolicyFailed,
    PromptRead,
    ReadPrompt,
    Refused,
    Released,
    ResetPrefixCache,
    RouterFailed,
    Siblings,
    StepOutput,
    Submit,
    Undelivered,
    Unserved,
)

News = Submit | EngineUp | EngineDown | Unserved


ToRouter = Ref[Submit | Siblings | Abort | Released | ResetPrefixCache | Freeze | ChangeAdapters | Drain]
FromClients = Generate | Cancel | CheckHealth | ResetPrefixCache | Freeze | ChangeAdapters | Drain
FrontMessage = FromClients | PromptRead | StepOutput | EngineNews


class AsyncLLM(Actor[FrontMessage]):
    """The front of the engine: the only actor that the API and replayed clients send to."""

    def __init__(
        self,
        name: str,
        config: EngineConfig,
        router: ToRouter,
        intake: Intake,
        readers: tuple[Ref[ReadPrompt], Ref[ReadPrompt]],
        *,
        listeners: Sequence[Ref[News]] = (),
        tap: Tap | None = None,
    ) -> None:
        super().__init__(name, tap=tap)
        self._router = router
        self._intake = intake
        self._readings = Readings(readers)
        self._listeners = tuple(listeners)
        self._replicas = ReplicaHealth(config.roles)
        self._requests: dict[str, ActiveRequest] = {}
        self._leaving: set[str] = set()
        """Requests that ended for their readers and not yet for an engine; their ids are still in use."""
        self._without_engine: dict[str, ActiveRequest] = {}
        """Requests that lost their engine before their readers received anything; another engine will get
        them.
        """
        self._families, self._num_accepted = Families(), 0
        self._may_refuse = defines(config.policy, "refuse") or defines(config.router, "refuse", RouterPolicy)

    @property
    def idle(self) -> bool:
        return not (self._requests or self._readings)

    def handle(self, message: FrontMessage) -> Handled:
        match message:
            case StepOutput():
                self._step(message)
            case Generate():
                return answer(message, self._generate(message))
            case PromptRead():
                self._prompt_read(message)
            case Cancel():
                self._cancel(message.request_id)
            case CheckHealth():
                return answer(message, replace(self._replicas.health(), capacity=self._intake.capacity))
            case ResetPrefixCache() | Freeze() | ChangeAdapters():
                return answer(message, self._router.request(message))
            case Drain():
                return answer(message, self._drain(message))
            case EngineDown():
                self._engine_down(message)
            case EngineUp():
                self._engine_up(message)
            case PolicyFailed() | RouterFailed():
                self._replicas.policy_failed(message)
            case Undelivered():
                self._undelivered(message)
            case _:
                self.unknown(message)
        return None

    async def closed(self) -> None:
        self._readings.close()
        self._router.close()

    def _generate(self, generate: Generate) -> Accepted | Refused | Reply[Accepted | Refused]:
        num_unfinished = len(self._requests) + len(self._readings)
        if refused := self._replicas.refusal() or self._intake.overload(num_unfinished, generate.n):
            return refused
        name = generate.request_id or self._new_id()
        ids = (name,) if generate.n == 1 else ids_of(name, generate.n)
        if self._is_in_use(name) if generate.n == 1 else any(map(self._is_in_use, ids)):
            return Refused(f"request id {name!r} is in use", param="request_id")
        if (num_characters := self._intake.effort(generate)) <= SHORT:
            return self._accept(
                name, self._intake.submit(generate, name, (self._clock or self.clock).now_s())
            )
        accepted, started = self._readings.begin(generate, name, num_characters)
        self._expect_read(started)
        return accepted

    def _expect_read(self, started: Started | None) -> None:
        if started is not None:
            read, reader = started
            self.expect(read, reader)

    def _prompt_read(self, read: PromptRead) -> None:
        """Accept a prompt that a PromptReader has tokenised, unless its client has left."""
        if (accepted := self._readings.end(read)) is not None:
            accepted.set(self._accept(read.request_id, read.submits))
        self._expect_read(self._readings.next())

    def _accept(self, name: str, submits: tuple[Submit, ...] | Refused) -> Accepted | Refused:
        requests = self._replicas.refusal() or self._intake.begin(submits, len(self._requests))
        if isinstance(requests, Refused):
            return requests
        self._num_accepted += 1
        accepted = [request.submit for request in requests]
        for request in requests:
            self._requests[request.submit.request_id] = request
        stream, tokens = requests[0].stream, accepted[0].prompt_token_ids
        if len(accepted) == 1:
            streams: tuple[DeltaStream, ...] = (stream,)
            self._router.tell(accepted[0])
        else:
            streams = tuple([each.stream for each in requests])
            self._families.begin(name, [submit.request_id for submit in accepted])
            self._router.tell(Siblings(tuple(accepted)))
        for submit in accepted:
            self._tell(submit)
        return Accepted(
            name,
            accepted[0].num_prompt_tokens,
            streams=streams,
            may_be_refused=self._may_refuse,
            prompt_token_ids=tokens,
        )

    def _is_in_use(self, key: str) -> bool:
        return key in self._requests or key in self._leaving or key in self._readings or key in self._families

    def _active(self, names: Iterable[str]) -> list[ActiveRequest]:
        """Return the requests among these whose readers wait for more."""
        return [self._requests[name] for name in names if name in self._requests]

    def _new_id(self) -> str:
        """Return the next id that no client has chosen itself."""
        while self._is_in_use(name := f"request-{self._num_accepted}"):
            self._num_accepted += 1
        return name

    def _cancel(self, name: str) -> None:
        self._readings.cancel(name)
        for request in self._active(self._families.unfinished(name)):
            self._cut(request, Delta(finish_reason="abort"))

    def _drain(self, drain: Drain) -> Refused | Reply[Done | Refused]:
        if refused := self._replicas.drain(drain):
            return refused
        drained = self._router.request(drain)
        self._rescue()
        return drained

    def _engine_down(self, down: EngineDown) -> None:
        self._replicas.down(down)
        in_batch = {each for name in down.in_batch for each in self._families.siblings(name)}
        self._tell(replace(down, in_batch=tuple([n for n in down.request_ids if n in in_batch])))
        for request in self._active(down.request_ids):
            request.lost_with_engine(in_batch=request.submit.request_id in in_batch)
        self._lost(down.request_ids)

    def _undelivered(self, undelivered: Undelivered) -> None:
        for request in self._active(undelivered.request_ids):
            request.num_losses += undelivered.was_lost
        self._lost(undelivered.request_ids)

    def _lost(self, request_ids: Iterable[str]) -> None:
        """End requests that were lost with their engine, or submit them to another one."""
        if gone := self._forget_leaving(request_ids):
            self._tell(Unserved(gone, "abort"))
        for request in self._active(request_ids):
            if request.may_begin_anew:
                request.is_admitted = False
                self._without_engine[request.submit.request_id] = request
            else:
                self._end(request, Delta(finish_reason="error", error=LOST))
                self._tell(Unserved((request.submit.request_id,), "error"))
        self._rescue()

    def _rescue(self) -> None:
        """Submit requests that wait for an engine; end them if no engine will be up again.

        If all engines that are up are drained, requests wait until one is undrained.
        """
        if not self._without_engine:
            return
        health = self._replicas.health()
        if health.status in ("restarting", "draining"):
            return
        if not health.serves:
            for request in list(self._without_engine.values()):
                self._end(request, Delta(finish_reason="error", error=LOST))
            return
        rescued, self._without_engine = self._without_engine, {}
        for request in rescued.values():
            self._router.tell(request.submit)

    def _tell(self, news: News) -> None:
        for listener in self._listeners:
            listener.tell(news)

    def _forget_leaving(self, request_ids: Iterable[str]) -> tuple[str, ...]:
        gone = tuple([name for name in request_ids if name in self._leaving])
        self._leaving.difference_update(gone)
        return gone

    def _engine_up(self, up: EngineUp) -> None:
        self._intake.connect(up.engine.capacity)
        self._replicas.up(up.replica)
        self._tell(up)
        self._rescue()

    def _step(self, output: StepOutput) -> None:
        self._begun(output)
        if not (output.finished or output.tokens or output.prompt_logprobs):
            return  # as most steps do where tokens are only counted
        finishes = _ends(output)
        if self._leaving and (gone := self._forget_leaving(finishes)):
            self._router.tell(Released(gone))
        for part in output.prompt_logprobs:
            if (request := self._requests.get(part.request_id)) is not None and request.is_admitted:
                request.take_prompt_logprobs(part)
        for finish in output.finished:
            is_handed = finish.reason == "handed" and finish.moves is None
            if is_handed and (request := self._requests.get(finish.request_id)) is not None:
                request.handed_over()
        if output.tokens:
            self._sampled(output, output.tokens, finishes)
        for name, end in finishes.items():
            if (request := self._requests.get(name)) is not None:
                self._end(request, last_delta(end))

    def _sampled(
        self, output: StepOutput, tokens: tuple[tuple[str, int], ...], finishes: dict[str, Finish]
    ) -> None:
        """Stream the tokens of a step."""
        logprobs, to_come, vectors = dict(output.logprobs), dict(output.accepted), dict(output.vectors)
        for name, token in tokens:
            if (request := self._requests.get(name)) is not None and request.is_admitted:
                finish = finishes.get(name)
                if more := to_come.get(name, 0):
                    to_come[name] = more - 1
                end_s, ends = output.end_times_s[-1], None if more else finish
                delta = request.decode(token, end_s, ends, logprobs.get(name))
                delta.vector = vectors.get(name)
                self._token(request, delta, finish)

    def _begun(self, output: StepOutput) -> None:
        """Record which requests were admitted and, if tokens are only counted, which have a first token."""
        for admission in output.batch.admitted:
            if (request := self._requests.get(admission.request_id)) is not None:
                request.admitted(admission)
        for chunk in output.batch.chunks if output.tokens is None else ():
            if chunk.samples and (request := self._requests.get(chunk.request_id)) is not None:
                request.has_begun = True

    def _token(self, request: ActiveRequest, delta: Delta, finish: Finish | None) -> None:
        """Stream a token, which may complete a stop string or be the last one."""
        if delta.finish_reason is None:
            request.stream.put(delta)
        elif finish is None:
            self._cut(request, delta, "abort" if delta.finish_reason == "error" else "stop")
        else:
            self._end(request, delta)

    def _cut(self, request: ActiveRequest, last: Delta, reason: Literal["abort", "stop"] = "abort") -> None:
        """End a request before its engine does."""
        name = request.submit.request_id
        if name not in self._without_engine:
            self._leaving.add(name)
            self._router.tell(Abort((name,), reason))
        self._end(request, last)

    def _end(self, request: ActiveRequest, last: Delta) -> None:
        name = request.submit.request_id
        del self._requests[name]
        self._families.end(name)
        self._intake.ended(len(self._requests))
        request.stream.put(last)
        if self._without_engine and self._without_engine.pop(name, None) is not None:
            self._tell(Unserved((name,), "abort" if last.finish_reason == "abort" else "error"))
        elif name not in self._leaving:
            self._router.tell(Released((name,)))


def _ends(output: StepOutput) -> dict[str, Finish]:
    """Return the requests that ended with a step; a handed-over request continues elsewhere."""
    return {finish.request_id: finish for finish in output.finished if finish.reason != "handed"}
