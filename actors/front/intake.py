"""Conversion of a Generate to a `Submit`, or to a refusal with the reason and the allowed values.

Checks the bounds of its fields, tokenizes, checks the length against the context and the vocabulary, and
hashes the prompt's full blocks. A prompt that is certainly too long by its bytes is refused at once.
Tokenizing takes a microsecond for every few characters and would block every stream: a long prompt is sent to
a PromptReader, which tokenizes it in a thread.
"""

import logging
from collections import deque
from typing import Final

import trio

from sundog.actors.config import EngineConfig
from sundog.actors.core.blocks.kv_cache import BlockHasher
from sundog.actors.core.logged import logged
from sundog.actors.core.params.sampling import Adapter, Sampling
from sundog.actors.core.predictors import Unanswered
from sundog.actors.core.queue.client_turns import ClientTurns
from sundog.actors.front.active_request import ActiveRequest, choices_of
from sundog.actors.front.bounds import out_of_bounds
from sundog.actors.front.codec import TextCodec, TokenDecoder, Vocabulary, with_thought
from sundog.actors.front.foreign import OWN_EXITS
from sundog.actors.front.prompts import (
    TOO_LONG,
    Tokens,
    effort,
    prompt_param,
    read_prompt,
    resolved,
    too_long,
)
from sundog.actors.kernel.actor import Actor, Handled, Ref, Reply, Tap, answer
from sundog.actors.kernel.clock import now_s, run_blocking
from sundog.actors.kernel.stream import Delta, DeltaStream
from sundog.actors.messages import Accepted, Capacity, Generate, PromptRead, ReadPrompt, Refused, Submit

MOST_ENDS = 64
FIRST_GUESS_S = 1.0


class Turnover:
    """Rate at which requests end, and the retry times given to refused clients.

    Law: a client refused later gets a later retry time, so that refused clients do not return all at once;
    none exceeds the time in which all unfinished requests end. Cost: O(1).
    """

    def __init__(self) -> None:
        self._instants_s: deque[float] = deque(maxlen=MOST_ENDS)
        """Latest ends of this busy period, preceded by its begin."""
        self._gap_s = FIRST_GUESS_S
        """Mean interval between completions in the previous busy period, in seconds."""
        self._promised_s = 0.0

    def begun(self, num_unfinished: int) -> None:
        """Record an accepted request while this many are unfinished."""
        if not num_unfinished:
            self._instants_s.clear()
            self._instants_s.append(now_s())

    def ended(self, num_unfinished: int) -> None:
        """Record the end of a request, with this many left."""
        self._instants_s.append(now_s())
        if not num_unfinished:
            self._gap_s = self._mean_gap_s()

    def room_in_s(self, num_lacking: int, num_unfinished: int) -> float:
        """Return when a refused client may try again, in seconds from now, and count that client.

        By then `num_lacking` more requests have ended than were promised to clients refused earlier.
        """
        gap_s, time_s = self._mean_gap_s(), now_s()
        promised_s = max(self._promised_s, time_s) + num_lacking * gap_s
        self._promised_s = min(promised_s, time_s + num_unfinished * gap_s)
        return self._promised_s - time_s

    def _mean_gap_s(self) -> float:
        if not self._instants_s:  # only prompts that are still being read are unfinished
            return self._gap_s
        busy_s, num_ends = now_s() - self._instants_s[0], len(self._instants_s) - 1
        return busy_s / num_ends if num_ends else max(self._gap_s, busy_s)


log = logging.getLogger("sundog.front")

MOST_EFFORT = 2**31 - 1


class Intake:
    """Converter of Generates into Submits for the engine.

    `submit` may run in any thread.
    """

    def __init__(
        self,
        config: EngineConfig,
        codec: TextCodec | None,
        vocabulary: Vocabulary,
        hash_block: BlockHasher | None,
    ) -> None:
        self._config = config
        self._max_waiting, self._max_logprobs = config.max_waiting, config.max_logprobs
        self._predictor = config.predictor
        self._vocabulary = vocabulary
        self._hash_block = hash_block if config.scheduler.enable_prefix_caching else None
        self._limit_tokens = config.scheduler.max_model_len
        """Most tokens of a request, prompt and answer."""
        self.capacity: Capacity | None = None
        """Capacity of the engine that came up last."""
        self._is_context = True
        """Whether the context, and not a smaller KV cache, limits the length of requests."""
        self._limit_words = self._said()
        self._codec = codec
        self._turnover = Turnover()
        self._in_bounds: Sampling | None = None
        """Latest parameters that passed the check: requests of a trace share theirs."""

    def connect(self, capacity: Capacity) -> None:
        """Record a replica's limits: no request may outgrow its KV cache."""
        self.capacity = capacity
        room = (capacity.num_blocks - 1) * self._config.scheduler.block_size
        self._limit_tokens = min(self._limit_tokens, room)
        self._is_context = self._limit_tokens == self._config.scheduler.max_model_len
        self._limit_words = self._said()

    def effort(self, generate: Generate) -> int:
        """Return the work of reading a request, in characters; a grammar to compile counts as more than a
        long prompt.
        """
        constraint, grammars = generate.sampling.constraint, self._vocabulary.grammars
        if constraint is not None and grammars is not None and not grammars.knows(constraint):
            return MOST_EFFORT
        return effort(generate)

    def overload(self, num_unfinished: int, n: int) -> Refused | None:
        """Return the refusal of `n` more requests while this many are unfinished, if any."""
        limit = self._max_waiting
        if limit is None or num_unfinished + n <= limit:
            return None
        if n > limit:
            return Refused(f"n is {n}: this server has at most {limit} unfinished requests", param="n")
        return Refused(
            f"{limit} requests are unfinished already: try again later",
            kind="overloaded",
            retry_after_s=self._turnover.room_in_s(num_unfinished + n - limit, num_unfinished),
        )

    def ended(self, num_unfinished: int) -> None:
        """Record the end of a request, with this many left."""
        if self._max_waiting is not None:
            self._turnover.ended(num_unfinished)

    def begin(
        self, submits: tuple[Submit, ...] | Refused, num_unfinished: int
    ) -> list[ActiveRequest] | Refused:
        """Return each request with a stream and a decoder; return a refusal unchanged."""
        if isinstance(submits, Refused):
            return submits
        if self._max_waiting is not None:
            self._turnover.begun(num_unfinished)
        try:
            return [ActiveRequest(submit, DeltaStream(), self._decoder(submit)) for submit in submits]
        except OWN_EXITS:
            raise
        except BaseException:  # as in `submit`
            log.exception("request %s has no decoder; it fails alone", logged(submits[0].request_id))
            return Refused("the answer cannot be turned into text", kind="failed")

    def _decoder(self, submit: Submit) -> TokenDecoder | None:
        sampling = submit.sampling
        if submit.prompt_token_ids is None or self._codec is None or sampling.pooling is not None:
            return None
        return self._codec.decoder(
            submit.prompt_token_ids, sampling.skip_special_tokens, sampling.spaces_between_special_tokens
        )

    def submit(self, generate: Generate, request_id: str, arrival_s: float) -> tuple[Submit, ...] | Refused:
        """Return the engine's requests for `generate`, one per choice, or the refusal.

        Whatever a tokenizer, a template or a grammar raises is the error of this request.
        """
        refused = out_of_bounds(generate, self._vocabulary.size, self._max_logprobs, self._in_bounds)
        if refused is not None:
            return refused
        self._in_bounds = generate.sampling
        try:
            sampling = resolved(generate.sampling, self._codec, self._vocabulary)
            if isinstance(sampling, Refused):
                return sampling
            prompt: Tokens | int | Refused
            if isinstance(generate.prompt, int) and self._vocabulary.size is None:
                prompt = generate.prompt  # tokens are only counted
            else:
                room, limit = self._room(generate), self._limit(sampling)
                prompt = read_prompt(generate, self._codec, self._vocabulary, room, limit)
        except OWN_EXITS:
            raise
        except BaseException:  # in the way of `contained`, without its calls
            log.exception("request %s could not be read; it fails alone", logged(request_id))
            return Refused("the request could not be read; the server's log says why", kind="failed")
        if isinstance(prompt, Refused):
            return prompt
        num_tokens = prompt if isinstance(prompt, int) else len(prompt)
        refused = self._check_length(generate, num_tokens)
        if refused is not None:
            return refused
        tokens = None if isinstance(prompt, int) else prompt
        thought = self._vocabulary.thought
        if tokens is not None and thought is not None:
            sampling = with_thought(sampling, thought, tokens)
        submit = self._submit(generate, sampling, request_id, arrival_s, tokens, num_tokens)
        return choices_of(submit, generate.n)

    def _check_length(self, generate: Generate, num_tokens: int) -> Refused | None:
        if num_tokens < 1:
            param = prompt_param(generate.prompt)
            return Refused("the prompt is empty: give at least one token", param=param)
        limit, sampling = self._limit_tokens, generate.sampling
        room = limit if sampling.pooling is not None else limit - 1
        if num_tokens > room:
            return too_long(f"{num_tokens}", self._limit(sampling), prompt_param(generate.prompt))
        max_tokens = sampling.max_tokens
        # The end of the context ends an answer; a cache that is smaller would stall the engine.
        most = limit if self._is_context else limit - num_tokens
        if max_tokens is not None and max_tokens > most:
            return Refused(
                f"{self._held_by()} tokens, but max_tokens is {max_tokens} and the prompt has {num_tokens}:"
                f" ask for at most {limit - num_tokens}",
                param="max_tokens",
                code=TOO_LONG,
            )
        return None

    def _room(self, generate: Generate) -> int:
        if generate.sampling.pooling is not None:
            return self._limit_tokens
        answer = generate.sampling.max_tokens or 1
        truncates = generate.reading.truncate_prompt_tokens == -1
        return self._limit_tokens - (answer if truncates else 1)

    def _held_by(self) -> str:
        """Return the beginning of a refusal for length, in vLLM's words, by which clients recognise it."""
        what = "This model's maximum context length is" if self._is_context else "The KV cache holds"
        return f"{what} {self._limit_tokens}"

    def _limit(self, sampling: Sampling) -> str:
        return self._limit_words[sampling.pooling is None]

    def _said(self) -> tuple[str, str]:
        alone = f"{self._held_by()} tokens"
        return alone, f"{alone}, with at least one more to generate"

    def _submit(
        self,
        generate: Generate,
        sampling: Sampling,
        request_id: str,
        arrival_s: float,
        tokens: Tokens | None,
        num_tokens: int,
    ) -> Submit:
        block_hashes, room = generate.block_hashes, max(self._limit_tokens - num_tokens, 1)
        if tokens is not None and self._hash_block is not None and block_hashes is None:
            block_hashes = self._hash_prompt(tokens, generate.cache_salt, generate.adapter)
        return Submit(
            request_id=request_id,
            arrival_s=arrival_s,
            num_prompt_tokens=num_tokens,
            max_tokens=min(sampling.max_tokens or room, room),
            prompt_token_ids=tokens,
            block_hashes=block_hashes,
            sampling=sampling,
            eos_token_id=self._vocabulary.eos_token_id,
            priority=generate.priority,
            cache_salt=generate.cache_salt,
            tenant=generate.tenant,
            slo_ttft_s=generate.slo_ttft_s,
            predicted_tokens=self._predicted(generate, request_id, tokens, num_tokens),
            slo_tpot_s=generate.slo_tpot_s,
            slo_e2e_s=generate.slo_e2e_s,
            adapter=generate.adapter,
            session=generate.session,
            has_remote_kv=generate.has_remote_kv,
            trace_headers=generate.trace_headers,
        )

    def _predicted(
        self, generate: Generate, request_id: str, tokens: Tokens | None, num_tokens: int
    ) -> int | None:
        predictor = self._predictor
        if predictor is None or generate.predicted_tokens is not None:
            return generate.predicted_tokens
        terms = generate.tenant, generate.session, generate.priority
        return predictor.predict(Unanswered(request_id, num_tokens, tokens, *terms, seed=self._config.seed))

    def _hash_prompt(self, tokens: Tokens, salt: str | None, adapter: Adapter | None) -> tuple[object, ...]:
        assert self._hash_block is not None
        keys: list[object] = []
        size = self._config.scheduler.block_size
        for start in range(0, len(tokens) - size + 1, size):
            parent = keys[-1] if keys else None
            keys.append(self._hash_block(parent, tokens[start : start + size], salt, adapter))
        return tuple(keys)


class PromptReader(Actor[ReadPrompt]):
    """Converts each Generate into Submits or a refusal.

    Law: once all callers have hung up, the reader does not wait for the prompt being read: the thread, which
    may be in native code that cannot be stopped, is abandoned.
    """

    def __init__(self, name: str, intake: Intake, *, tap: Tap | None = None) -> None:
        super().__init__(name, tap=tap)
        self._intake = intake
        self._reading: trio.CancelScope | None = None

    def wake(self) -> None:
        if self._reading is not None and self.mailbox.num_callers == 0:
            self._reading.cancel()
        super().wake()

    def handle(self, message: ReadPrompt) -> Handled:
        match message:
            case ReadPrompt():
                return answer(message, self._read(message))
            case _:
                self.unknown(message)

    async def _read(self, message: ReadPrompt) -> PromptRead:
        submits: tuple[Submit, ...] | Refused = Refused("the server stops")
        with trio.CancelScope() as self._reading:
            submits = await run_blocking(
                self._intake.submit,
                message.generate,
                message.request_id,
                message.arrival_s,
                abandon_on_cancel=True,
            )
        self._reading = None
        return PromptRead(message.request_id, message.number, submits)


SHORT: Final = 4_000
"""Characters up to which a prompt is tokenised in place: that takes 0.6 ms, a thread 0.15 ms more."""
LONG = 100_000
"""Characters from which a prompt goes to the second reader."""


Started = tuple[Reply[PromptRead], str]
"""Pending PromptRead, and the name of its PromptReader."""


class Readings:
    """Prompts being read, by request id.

    Long prompts and new grammars go to the second reader one at a time, in turn by client: a client that
    sends eight large schemas delays another's by one at most.
    """

    def __init__(self, readers: tuple[Ref[ReadPrompt], Ref[ReadPrompt]]) -> None:
        self._readers = readers
        self._answers: dict[str, tuple[int, int, Reply[Accepted | Refused]]] = {}
        """Number of each prompt, its number of choices, and its reply."""
        self._number = 0
        self._waiting = ClientTurns[ReadPrompt]()
        """Prompts for the second reader."""
        self._long_number: int | None = None
        """Number of the prompt at the second reader."""

    def __len__(self) -> int:
        """Return how many engine requests will be made from the prompts being read."""
        return sum([n for _, n, _ in self._answers.values()]) if self._answers else 0

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._answers

    def begin(
        self, generate: Generate, request_id: str, num_characters: int
    ) -> tuple[Reply[Accepted | Refused], Started | None]:
        """Start reading a prompt; return its pending answer, and what to start now if a reader is free."""
        self._number += 1
        answer: Reply[Accepted | Refused] = Reply()
        self._answers[request_id] = self._number, generate.n, answer
        message = ReadPrompt(generate, request_id, self._number, now_s())
        if num_characters <= LONG:
            return answer, _asked(self._readers[0], message)
        self._waiting.put(generate.client, message)
        return answer, self.next()

    def next(self) -> Started | None:
        """Pass the next client's prompt to the second reader, if it is free and one waits."""
        message = None if self._long_number is not None else self._waiting.take()
        if message is None:
            return None
        self._long_number = message.number
        return _asked(self._readers[1], message)

    def end(self, read: PromptRead) -> Reply[Accepted | Refused] | None:
        """Return the pending answer of this prompt, unless it was cancelled."""
        if read.number == self._long_number:
            self._long_number = None
        number, _, answer = self._answers.get(read.request_id, (0, 0, None))
        if number != read.number:
            return None
        del self._answers[read.request_id]
        return answer

    def cancel(self, request_id: str) -> None:
        """Answer the client of this prompt at once, as an aborted request."""
        number, n, answer = self._answers.pop(request_id, (0, 0, None))
        if answer is None:
            return
        self._waiting.keep(lambda prompt: prompt.number != number)
        streams = tuple([DeltaStream() for _ in range(n)])
        for stream in streams:
            stream.put(Delta(finish_reason="abort"))
        answer.set(Accepted(request_id, 0, streams))

    def close(self) -> None:
        """Hang up on the PromptReaders."""
        for reader in self._readers:
            reader.close()


def _asked(reader: Ref[ReadPrompt], message: ReadPrompt) -> Started:
    return reader.request(message), reader.receiver
