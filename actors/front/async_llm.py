"""AsyncLLM: a request from its arrival to its end. Tokenise, submit, detokenise, stream, cancel.

Law: whatever is accepted ends with exactly one last delta, and its blocks are free within a step
of the moment nobody wants it any more. The engine never waits for a reader.
"""

from collections.abc import Sequence
from typing import Any, Literal

from actors.actor import Actor, Ref, Tap
from actors.config import EngineConfig
from actors.core.kv_cache import BlockHasher
from actors.core.stop_strings import StopStrings
from actors.front.codec import TextCodec, TokenDecoder, Vocabulary
from actors.front.intake import Intake
from actors.messages import (
    Abort,
    Accepted,
    Cancel,
    Capacity,
    Finish,
    Generate,
    Refused,
    Released,
    StepOutput,
    Submit,
)
from actors.stream import Delta, DeltaStream

RETRY_AFTER_S = 1.0


class ActiveRequest:
    """One accepted request."""

    __slots__ = ("decoder", "is_admitted", "num_cached_tokens", "stop_strings", "stream", "submit")

    def __init__(self, submit: Submit, stream: DeltaStream, decoder: TokenDecoder | None) -> None:
        self.submit = submit
        self.stream = stream
        self.decoder = decoder
        self.stop_strings = StopStrings(submit.sampling.stop)
        self.num_cached_tokens = 0
        self.is_admitted = False
        """What comes for its id before is still for an earlier request of that name."""


class AsyncLLM(Actor):
    """The front of the engine: API and replayed clients talk to it and to nobody else."""

    def __init__(
        self,
        name: str,
        config: EngineConfig,
        router: Ref,
        *,
        codec: TextCodec | None = None,
        vocabulary: Vocabulary | None = None,
        hash_block: BlockHasher | None = None,
        listeners: Sequence[Ref] = (),
        tap: Tap | None = None,
    ) -> None:
        super().__init__(name, tap=tap)
        self._config = config
        self._router = router
        self._intake = Intake(config, codec, vocabulary or Vocabulary(), hash_block)
        self._listeners = listeners
        self._requests: dict[str, ActiveRequest] = {}
        self._leaving: set[str] = set()
        """Over for their readers, but not yet for the engine: their ids are still in use."""
        self._num_accepted = 0

    @property
    def idle(self) -> bool:
        return not self._requests

    def connect(self, capacity: Capacity) -> None:
        """Learn of a replica, before AsyncLLM starts: no request may outgrow its KV cache."""
        self._intake.connect(capacity)

    def handle(self, message: Any) -> Any:
        match message:
            case StepOutput():
                self._step(message)
            case Generate():
                return self._generate(message)
            case Cancel():
                self._cancel(message.request_id)
            case _:
                super().handle(message)

    async def closed(self) -> None:
        self._router.close()

    # --- in ------------------------------------------------------------------------------------

    def _generate(self, generate: Generate) -> Accepted | Refused:
        limit = self._config.max_waiting
        if limit is not None and len(self._requests) >= limit:
            return Refused(
                f"{limit} requests are unfinished already: try again later",
                kind="overloaded",
                retry_after_s=RETRY_AFTER_S,
            )
        name = generate.request_id or self._new_id()
        if name in self._requests or name in self._leaving:
            return Refused(f"request id {name!r} is in use", param="request_id")
        submit = self._intake.submit(generate, name)
        if isinstance(submit, Refused):
            return submit
        self._num_accepted += 1
        decoder = None
        if submit.prompt_token_ids is not None and self._intake.codec is not None:
            decoder = self._intake.codec.decoder(submit.prompt_token_ids)
        request = ActiveRequest(submit, DeltaStream(), decoder)
        self._requests[name] = request
        self._router.tell(submit)
        for listener in self._listeners:
            listener.tell(submit)
        return Accepted(name, submit.num_prompt_tokens, request.stream)

    def _new_id(self) -> str:
        """The next id that no client has taken for its own."""
        while (name := f"request-{self._num_accepted}") in self._requests:
            self._num_accepted += 1
        return name

    def _cancel(self, name: str) -> None:
        request = self._requests.get(name)
        if request is not None:
            self._abort(name)
            self._end(request, Delta(finish_reason="abort"))

    def _abort(self, name: str, reason: Literal["abort", "stop"] = "abort") -> None:
        self._leaving.add(name)
        self._router.tell(Abort((name,), reason))

    # --- out -----------------------------------------------------------------------------------

    def _step(self, output: StepOutput) -> None:
        for admission in output.batch.admitted:
            request = self._requests.get(admission.request_id)
            if request is not None and not admission.resumed:
                request.num_cached_tokens = admission.num_computed_tokens
                request.is_admitted = True
        finishes = {finish.request_id: finish for finish in output.finished}
        self._leaving.difference_update(finishes)
        for name, token in output.tokens or ():
            request = self._requests.get(name)
            if request is not None and request.is_admitted:
                self._token(request, token, output.end_times_s[-1], finishes.pop(name, None))
        for name, finish in finishes.items():
            request = self._requests.get(name)
            if request is not None:
                end = Delta(finish_reason=finish.reason, stop_reason=finish.stop_reason, error=finish.error)
                self._end(request, end)

    def _token(self, request: ActiveRequest, token: int, time_s: float, finish: Finish | None) -> None:
        """Pass one token on; it may complete a stop string, or be the last."""
        stopped_by_token = finish is not None and finish.reason == "stop"
        text = "" if request.decoder is None or stopped_by_token else request.decoder.step(token)
        shown, stop = request.stop_strings.feed(text) if request.submit.sampling.stop else (text, None)
        delta = Delta(shown, (token,), 1, None, None, request.num_cached_tokens, (time_s,))
        if stop is not None:
            if finish is None:
                self._abort(request.submit.request_id, "stop")
            self._end(request, delta.merged(Delta(finish_reason="stop", stop_reason=stop)))
        elif finish is not None:
            cut_off = "" if request.decoder is None else request.decoder.flush()
            rest = request.stop_strings.flush() + cut_off
            end = Delta(rest, finish_reason=finish.reason, stop_reason=finish.stop_reason)
            self._end(request, delta.merged(end))
        else:
            request.stream.put(delta)

    def _end(self, request: ActiveRequest, last: Delta) -> None:
        name = request.submit.request_id
        del self._requests[name]
        request.stream.put(last)
        self._router.tell(Released((name,)))
