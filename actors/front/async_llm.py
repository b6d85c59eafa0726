"""AsyncLLM: the life of a request. Tokenise, submit, detokenise, stream, cancel.

Law: whatever is accepted ends with exactly one last delta, and its blocks are free within a step
of the moment nobody wants it any more. The engine never waits for a reader.
"""

from collections.abc import Sequence
from typing import Any, Literal

from actors.actor import Actor, Ref, Tap
from actors.config import EngineConfig
from actors.core.kv_cache import BlockHasher
from actors.core.stop_strings import StopStrings
from actors.front.intake import Intake, ModelFacts, TokenDecoder, Tokenizer
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


class Life:
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
        tokenizer: Tokenizer | None = None,
        model: ModelFacts | None = None,
        hash_block: BlockHasher | None = None,
        listeners: Sequence[Ref] = (),
        tap: Tap | None = None,
    ) -> None:
        super().__init__(name, tap=tap)
        self._config = config
        self._router = router
        self._intake = Intake(config, tokenizer, model or ModelFacts(), hash_block)
        self._listeners = listeners
        self._lives: dict[str, Life] = {}
        self._leaving: set[str] = set()
        """Over for their readers, but not yet for the engine: their ids are still in use."""
        self._num_accepted = 0

    @property
    def idle(self) -> bool:
        return not self._lives

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

    def _generate(self, wish: Generate) -> Accepted | Refused:
        limit = self._config.max_waiting
        if limit is not None and len(self._lives) >= limit:
            return Refused(
                f"{limit} requests are unfinished already: try again later",
                kind="overloaded",
                retry_after_s=RETRY_AFTER_S,
            )
        name = wish.request_id or self._new_id()
        if name in self._lives or name in self._leaving:
            return Refused(f"request id {name!r} is in use", param="request_id")
        submit = self._intake.submit(wish, name)
        if isinstance(submit, Refused):
            return submit
        self._num_accepted += 1
        decoder = None
        if submit.prompt_token_ids is not None and self._intake.tokenizer is not None:
            decoder = self._intake.tokenizer.decoder(submit.prompt_token_ids)
        life = Life(submit, DeltaStream(), decoder)
        self._lives[name] = life
        self._router.tell(submit)
        for listener in self._listeners:
            listener.tell(submit)
        return Accepted(name, submit.num_prompt_tokens, life.stream)

    def _new_id(self) -> str:
        """The next id that no client has taken for its own."""
        while (name := f"request-{self._num_accepted}") in self._lives:
            self._num_accepted += 1
        return name

    def _cancel(self, name: str) -> None:
        life = self._lives.get(name)
        if life is not None:
            self._abort(name)
            self._end(life, Delta(finish_reason="abort"))

    def _abort(self, name: str, reason: Literal["abort", "stop"] = "abort") -> None:
        self._leaving.add(name)
        self._router.tell(Abort((name,), reason))

    # --- out -----------------------------------------------------------------------------------

    def _step(self, output: StepOutput) -> None:
        for admission in output.batch.admitted:
            life = self._lives.get(admission.request_id)
            if life is not None and not admission.resumed:
                life.num_cached_tokens = admission.num_computed_tokens
                life.is_admitted = True
        finishes = {finish.request_id: finish for finish in output.finished}
        self._leaving.difference_update(finishes)
        for name, token in output.tokens or ():
            life = self._lives.get(name)
            if life is not None and life.is_admitted:
                self._token(life, token, output.end_times_s[-1], finishes.pop(name, None))
        for name, finish in finishes.items():
            life = self._lives.get(name)
            if life is not None:
                end = Delta(finish_reason=finish.reason, stop_reason=finish.stop_reason, error=finish.error)
                self._end(life, end)

    def _token(self, life: Life, token: int, time_s: float, finish: Finish | None) -> None:
        """Pass one token on; it may complete a stop string, or be the last."""
        stopped_by_token = finish is not None and finish.reason == "stop"
        text = "" if life.decoder is None or stopped_by_token else life.decoder.step(token)
        shown, stop = life.stop_strings.feed(text) if life.submit.sampling.stop else (text, None)
        delta = Delta(shown, (token,), 1, None, None, life.num_cached_tokens, (time_s,))
        if stop is not None:
            if finish is None:
                self._abort(life.submit.request_id, "stop")
            self._end(life, delta.merged(Delta(finish_reason="stop", stop_reason=stop)))
        elif finish is not None:
            cut_off = "" if life.decoder is None else life.decoder.flush()
            rest = life.stop_strings.flush() + cut_off
            end = Delta(rest, finish_reason=finish.reason, stop_reason=finish.stop_reason)
            self._end(life, delta.merged(end))
        else:
            life.stream.put(delta)

    def _end(self, life: Life, last: Delta) -> None:
        name = life.submit.request_id
        del self._lives[name]
        life.stream.put(last)
        self._router.tell(Released((name,)))
