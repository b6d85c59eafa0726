"""Accepted request from its first token to its last, and the choices of a prompt.

The `n` choices of a prompt are `n` requests of the engine, which end, fail and are cancelled as one answer.
All go to one replica in one step, where the first computes the prompt's full blocks and the others find them
in the prefix cache: each recomputes only the rest of the prompt, from one token to a whole block.
"""

import logging
from dataclasses import replace

from sundog.actors.core.logged import logged
from sundog.actors.core.params.sampling import Repetition
from sundog.actors.core.params.stop_strings import StopStrings
from sundog.actors.front.codec import TokenDecoder
from sundog.actors.front.foreign import OWN_EXITS
from sundog.actors.kernel.stream import Delta, DeltaStream
from sundog.actors.messages import Admission, Finish, PromptLogprobs, Submit, TokenLogprobs

log = logging.getLogger("sundog.front")

MOST_LOSSES = 3
"""Number of lost engines after which a request is not resubmitted: it may be what crashes them."""
LOST = "the engine failed while it answered this request; the server's log says why"
REPEATED = Finish("", "repetition", "repetition_detected")
UNDECODABLE = "a token could not be turned into text; the server's log says why"


def last_delta(finish: Finish) -> Delta:
    """Return the last delta of a request that ends without a token."""
    return Delta(
        finish_reason=finish.reason,
        stop_reason=finish.stop_reason,
        error=finish.error,
        retry_after_s=finish.retry_after_s,
    )


class ActiveRequest:
    """Accepted request with its stream and its decoder."""

    def __init__(self, submit: Submit, stream: DeltaStream, decoder: TokenDecoder | None) -> None:
        self.submit = submit
        self.stream = stream
        self.decoder = decoder
        sampling = submit.sampling
        self.stop_strings = StopStrings(sampling.stop, sampling.include_stop_str_in_output)
        self._text_is_shown_at_once = not sampling.stop and sampling.repetition is None
        self.num_fed = 0
        """Number of tokens received so far, counted only with stop strings or a repetition rule."""
        self.last_tokens: list[int] = []
        """Last tokens, checked for repetitions."""
        self.num_cached_tokens = 0
        self.is_admitted = False
        """Whether its engine has begun it; before that, messages with its id concern an earlier request."""
        self.has_begun = False
        """Whether its reader has received a token, or its engine was lost with a batch that contained it."""
        self.num_losses = 0
        """Number of engines lost with it."""
        wants = sampling.prompt_logprobs is not None
        self.prompt_logprobs: list[TokenLogprobs | None] = [None] if wants else []
        """Log probabilities so far, by position; the first delta carries them all."""

    @property
    def may_begin_anew(self) -> bool:
        """Whether the request may be resubmitted to another engine: its reader would not notice, and it is
        not suspected of crashes.
        """
        return not self.has_begun and self.num_losses < MOST_LOSSES

    def lost_with_engine(self, *, in_batch: bool) -> None:
        """Record the loss of its engine; a request that was in a batch is not resubmitted, since it may be
        the cause.
        """
        self.num_losses += 1
        self.has_begun = self.has_begun or in_batch

    def admitted(self, admission: Admission) -> None:
        """Record its admission by the engine; a readmission after a preemption changes nothing."""
        if not admission.resumed:
            self.num_cached_tokens = admission.num_computed_tokens
            self.is_admitted = True

    def handed_over(self) -> None:
        """Record that its prompt is computed and the next engine will produce its first token."""
        self.is_admitted = self.has_begun = False

    def take_prompt_logprobs(self, part: PromptLogprobs) -> None:
        """Store a part of the prompt's log probabilities; recomputed ones replace earlier ones."""
        self.prompt_logprobs[part.start :] = part.tokens

    def decode(
        self, token: int, time_s: float, finish: Finish | None, logprobs: TokenLogprobs | None = None
    ) -> Delta:
        """Return the delta of one token, with a finish reason if the request ends."""
        begins, self.has_begun = not self.has_begun, True
        try:
            if finish is None and self._text_is_shown_at_once:  # nearly every token
                text = "" if self.decoder is None else self.decoder.step(token)
                delta = Delta(
                    text,
                    (token,),
                    num_tokens=1,
                    finish_reason=None,
                    stop_reason=None,
                    num_cached_tokens=self.num_cached_tokens,
                    times_s=(time_s,),
                )
            else:
                delta = self._decode(token, time_s, finish)
            if logprobs is not None:
                delta.logprobs = (logprobs,)
            if begins and self.prompt_logprobs:
                delta.prompt_logprobs, self.prompt_logprobs = tuple(self.prompt_logprobs), []
            return delta
        except OWN_EXITS:
            raise
        except BaseException:  # in the way of `contained`, which a token does not pay for
            log.exception("a token of %s has no text; it fails alone", logged(self.submit.request_id))
            return Delta(finish_reason="error", error=UNDECODABLE)

    def _decode(self, token: int, time_s: float, finish: Finish | None) -> Delta:
        sampling = self.submit.sampling
        stopped_by_token = finish is not None and finish.reason == "stop"
        is_hidden = stopped_by_token and not sampling.include_stop_str_in_output
        text = "" if self.decoder is None or is_hidden else self.decoder.step(token)
        shown, stop = self._watch(text) if sampling.stop else (text, None)
        delta = Delta(
            shown,
            (token,),
            num_tokens=1,
            finish_reason=None,
            stop_reason=None,
            num_cached_tokens=self.num_cached_tokens,
            times_s=(time_s,),
        )
        if stop is not None:
            return delta.merged(Delta(finish_reason="stop", stop_reason=stop))
        if finish is None and sampling.repetition is not None and self._repeats(token, sampling.repetition):
            finish = REPEATED
        if finish is None:
            return delta
        rest = self.stop_strings.flush()
        return delta.merged(Delta(rest, finish_reason=finish.reason, stop_reason=finish.stop_reason))

    def _repeats(self, token: int, repetition: Repetition) -> bool:
        self.num_fed += not self.submit.sampling.stop
        self.last_tokens = [*self.last_tokens, token][-repetition.most_tokens :]
        return self.num_fed >= self.submit.sampling.min_tokens and repetition.ends(self.last_tokens)

    def _watch(self, text: str) -> tuple[str, str | None]:
        self.num_fed += 1
        return self.stop_strings.feed(text, self.num_fed > self.submit.sampling.min_tokens)


def choice_ids(request_id: str, n: int) -> tuple[str, ...]:
    """Return the ids of a request's choices: its own if there is one."""
    return (request_id,) if n == 1 else tuple([f"{index}_{request_id}" for index in range(n)])


def ids_of(request_id: str, n: int) -> tuple[str, ...]:
    """Return all ids that a request uses: its own, and those of several choices."""
    return (request_id,) if n == 1 else (request_id, *choice_ids(request_id, n))


def choices_of(submit: Submit, n: int) -> tuple[Submit, ...]:
    """Return `submit` once per choice; a choice's seed is the first one's plus its index."""
    if n == 1:
        return (submit,)
    seed = submit.sampling.seed
    return tuple(
        replace(
            submit,
            request_id=request_id,
            sampling=submit.sampling if seed is None else replace(submit.sampling, seed=seed + index),
        )
        for index, request_id in enumerate(choice_ids(submit.request_id, n))
    )


class Families:
    """Unfinished choices of each request that has several."""

    def __init__(self) -> None:
        self._unfinished: dict[str, list[str]] = {}
        self._parent_of: dict[str, str] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._unfinished

    def begin(self, request_id: str, choice_ids: list[str]) -> None:
        """Record the choices of a request that has several."""
        self._unfinished[request_id] = choice_ids
        self._parent_of.update(dict.fromkeys(choice_ids, request_id))

    def unfinished(self, request_id: str) -> tuple[str, ...]:
        """Return the unfinished choices of a request, or the request itself if it has one."""
        return tuple(self._unfinished.get(request_id, (request_id,)))

    def siblings(self, choice_id: str) -> tuple[str, ...]:
        """Return the unfinished choices of the same prompt, or the choice itself."""
        return self.unfinished(self._parent_of.get(choice_id, choice_id))

    def end(self, choice_id: str) -> None:
        """Remove a choice, and its request with the last one."""
        parent = self._parent_of.pop(choice_id, None) if self._parent_of else None
        if parent is not None:
            self._unfinished[parent].remove(choice_id)
            if not self._unfinished[parent]:
                del self._unfinished[parent]
