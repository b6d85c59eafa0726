"""AsyncLLM: the life of a request. Tokenise, submit, detokenise, stream, cancel.

Law: whatever is accepted ends with exactly one last delta, and its blocks are free within a step
of the moment nobody wants it any more. The engine never waits for a reader.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from actors.actor import Actor, Ref, Tap
from actors.clock import now_s
from actors.config import EngineConfig
from actors.core.kv_cache import BlockHasher
from actors.core.stop_strings import StopStrings
from actors.messages import (
    Abort,
    Accepted,
    Cancel,
    Capacity,
    ChatMessage,
    Finish,
    Generate,
    Refused,
    Released,
    StepOutput,
    Submit,
)
from actors.stream import Delta, DeltaStream

RETRY_AFTER_S = 1.0
TOO_LONG = "context_length_exceeded"


class TokenDecoder(Protocol):
    """Turns one request's tokens into text, one after another."""

    def step(self, token_id: int) -> str:
        """The text that this token completes; empty in the middle of a character."""
        ...

    def flush(self) -> str:
        """What is left of a character that the last token cut off."""
        ...


class Tokenizer(Protocol):
    """Text to tokens and back."""

    def encode(self, text: str) -> list[int]: ...

    def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Tokens of a conversation; raises ValueError if the model has no chat template for it."""
        ...

    def decoder(self, prompt_ids: Sequence[int]) -> TokenDecoder: ...


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What AsyncLLM must know of the model; nothing where tokens are only counted.

    `stop_token_ids` are further end tokens beside `eos_token_id`.
    """

    eos_token_id: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    vocab_size: int | None = None


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
        self._tokenizer = tokenizer
        self._model = model or ModelFacts()
        self._hash_block = hash_block if config.scheduler.enable_prefix_caching else None
        self._listeners = listeners
        self._lives: dict[str, Life] = {}
        self._leaving: set[str] = set()
        """Over for their readers, but not yet for the engine: their ids are still in use."""
        self._num_accepted = 0
        self._limit_tokens = config.scheduler.max_model_len
        """The most tokens, prompt and answer, that a request may come to."""

    @property
    def idle(self) -> bool:
        return not self._lives

    def connect(self, capacity: Capacity) -> None:
        """Learn of a replica, before AsyncLLM starts: no request may outgrow its KV cache."""
        room = (capacity.num_blocks - 1) * self._config.scheduler.block_size
        self._limit_tokens = min(self._limit_tokens, room)

    async def handle(self, message: Any) -> Any:
        match message:
            case StepOutput():
                self._step(message)
            case Generate():
                return self._generate(message)
            case Cancel():
                self._cancel(message.request_id)
            case _:
                await super().handle(message)

    async def closed(self) -> None:
        self._router.close()

    # --- in ------------------------------------------------------------------------------------

    def _generate(self, wish: Generate) -> Accepted | Refused:
        limit = self._config.max_waiting
        if limit is not None and len(self._lives) >= limit:
            return Refused(
                f"{limit} requests are unfinished already: try again later",
                kind="overloaded", retry_after_s=RETRY_AFTER_S,
            )  # fmt: skip
        prompt = self._tokenise(wish)
        if isinstance(prompt, Refused):
            return prompt
        num_tokens = prompt if isinstance(prompt, int) else len(prompt)
        name = wish.request_id or self._new_id()
        refused = self._check(wish, name, num_tokens)
        if refused is not None:
            return refused
        self._num_accepted += 1
        submit = self._submit(wish, name, None if isinstance(prompt, int) else prompt, num_tokens)
        decoder = None
        if submit.prompt_token_ids is not None and self._tokenizer is not None:
            decoder = self._tokenizer.decoder(submit.prompt_token_ids)
        life = Life(submit, DeltaStream(), decoder)
        self._lives[name] = life
        self._router.tell(submit)
        for listener in self._listeners:
            listener.tell(submit)
        return Accepted(name, num_tokens, life.stream)

    def _new_id(self) -> str:
        """The next id that no client has taken for its own."""
        while (name := f"request-{self._num_accepted}") in self._lives:
            self._num_accepted += 1
        return name

    def _tokenise(self, wish: Generate) -> tuple[int, ...] | int | Refused:
        """The prompt's tokens, or their number where tokens are only counted."""
        prompt = wish.prompt
        if isinstance(prompt, int):
            if self._model.vocab_size is None:
                return prompt
            return Refused("a number of tokens is no prompt for a real model", param="prompt")
        if isinstance(prompt, str):
            if self._tokenizer is None:
                return Refused("there is no tokenizer: give token ids", param="prompt")
            return tuple(self._tokenizer.encode(prompt))
        if prompt and isinstance(prompt[0], ChatMessage):
            if self._tokenizer is None:
                return Refused("there is no tokenizer: give token ids", param="messages")
            try:
                return tuple(self._tokenizer.encode_chat(prompt))
            except ValueError as error:
                return Refused(str(error), param="messages")
        tokens: tuple[int, ...] = prompt  # type: ignore[assignment]
        vocab_size = self._model.vocab_size
        for token in tokens:
            if token < 0 or (vocab_size is not None and token >= vocab_size):
                return Refused(
                    f"token id {token} is not in the vocabulary (0 to {(vocab_size or 0) - 1})",
                    param="prompt",
                )
        return tokens

    def _check(self, wish: Generate, name: str, num_tokens: int) -> Refused | None:
        """Why the request cannot be served, if so."""
        param = "messages" if wish.prompt and _is_chat(wish.prompt) else "prompt"
        if name in self._lives or name in self._leaving:
            return Refused(f"request id {name!r} is in use", param="request_id")
        if num_tokens < 1:
            return Refused("the prompt is empty: give at least one token", param=param)
        limit, max_tokens = self._limit_tokens, wish.sampling.max_tokens
        is_context = limit == self._config.scheduler.max_model_len
        what = f"the model's context of {limit}" if is_context else f"a KV cache of {limit} tokens"
        if num_tokens >= limit:
            return Refused(
                f"the prompt has {num_tokens} tokens, but {what} must hold it and at least one"
                " more: shorten it", param=param, code=TOO_LONG,
            )  # fmt: skip
        if max_tokens is not None and max_tokens < 1:
            return Refused(
                f"max_tokens is {max_tokens}: ask for at least one token", param="max_tokens"
            )
        if max_tokens is not None and num_tokens + max_tokens > limit:
            return Refused(
                f"the prompt's {num_tokens} tokens and max_tokens {max_tokens} exceed {what}: ask"
                f" for at most {limit - num_tokens}", param="max_tokens", code=TOO_LONG,
            )  # fmt: skip
        return None

    def _submit(
        self, wish: Generate, name: str, tokens: tuple[int, ...] | None, num_tokens: int
    ) -> Submit:
        sampling = wish.sampling
        if self._model.stop_token_ids and not sampling.ignore_eos:
            stops = sampling.stop_token_ids + self._model.stop_token_ids
            sampling = replace(sampling, stop_token_ids=stops)
        block_hashes = wish.block_hashes
        if tokens is not None and self._hash_block is not None and block_hashes is None:
            block_hashes = self._hash_prompt(tokens, wish.cache_salt)
        return Submit(
            request_id=name,
            arrival_s=now_s(),
            num_prompt_tokens=num_tokens,
            max_tokens=sampling.max_tokens or self._limit_tokens - num_tokens,
            prompt_token_ids=tokens,
            block_hashes=block_hashes,
            sampling=sampling,
            eos_token_id=self._model.eos_token_id,
            priority=wish.priority,
            cache_salt=wish.cache_salt,
            tenant=wish.tenant,
            slo_ttft_s=wish.slo_ttft_s,
            predicted_tokens=wish.predicted_tokens,
        )

    def _hash_prompt(self, tokens: tuple[int, ...], salt: str | None) -> tuple[object, ...]:
        assert self._hash_block is not None
        keys: list[object] = []
        size = self._config.scheduler.block_size
        for start in range(0, len(tokens) - size + 1, size):
            parent = keys[-1] if keys else None
            keys.append(self._hash_block(parent, tokens[start : start + size], salt))
        return tuple(keys)

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
                self._end(life, Delta(finish_reason=finish.reason, stop_reason=finish.stop_reason))

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


def _is_chat(prompt: object) -> bool:
    return isinstance(prompt, tuple) and isinstance(prompt[0], ChatMessage)
