"""Choices of an answer: submission, reading, cancellation, and what the client may see of each."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from sundog.actors.api.answers.logprobs import Json, Logprobs, TokenTexts, prompt_logprobs
from sundog.actors.api.answers.reasoning import ThoughtCount
from sundog.actors.api.bodies.sampling import UsageWanted
from sundog.actors.api.errors import refusal
from sundog.actors.api.in_flight import LLM
from sundog.actors.front.codec import ThoughtMarks
from sundog.actors.kernel.actor import ActorDied
from sundog.actors.kernel.stream import Delta, DeltaStream
from sundog.actors.messages import Accepted, Cancel, Generate, Refused


class AskedPrompt:
    """Submitted prompt, which counts its choices that are not read to the end."""

    def __init__(self, llm: LLM, index: int, generate: Generate) -> None:
        assert generate.request_id is not None
        self._llm = llm
        self.index = index
        self.prompt_token_ids: tuple[int, ...] = ()
        self._unread = generate.n
        self.request_id = generate.request_id
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0

    async def start(self, generate: Generate, prompt_field: str) -> Accepted:
        """Submit a prompt to AsyncLLM; raises ApiError if it is refused."""
        reply = await self._llm.ask(generate)
        if isinstance(reply, Refused):
            self._unread = 0
            raise refusal(reply, prompt_field)
        self.num_prompt_tokens = reply.num_prompt_tokens
        self.prompt_token_ids = reply.prompt_token_ids or ()
        return reply

    def finished(self) -> None:
        """Record that one more choice was read to the end."""
        self._unread -= 1

    def cancel_unless_finished(self) -> None:
        """Tell AsyncLLM that the rest will not be read; synchronous, so that it works during cancellation."""
        if self._unread:
            self._unread = 0
            with suppress(ActorDied):  # then there is nothing left to cancel
                self._llm.tell(Cancel(self.request_id))


class AnswerChoice:
    """Choice of an answer, which counts what has been read of it."""

    def __init__(self, index: int, asked: AskedPrompt, stream: DeltaStream, *, is_first: bool) -> None:
        self._stream = stream
        self._first: Delta | None = None
        """First delta, read early to learn whether the engine's policy refused the request."""
        self.asked = asked
        self.index = index
        self.is_first = is_first
        """Whether this is the first choice of a prompt, whose cached tokens are counted."""
        self.num_tokens = 0
        self.thoughts: ThoughtCount | None = None
        self.finished = False
        self.cut: tuple[int, Callable[[], None]] | None = None
        """Number of tokens after which to cut the answer, and the function that does."""

    async def confirm(self) -> None:
        """Wait until the engine has accepted the request; raises ApiError if its policy refuses it."""
        first = self._first = await anext(self._stream)
        if first.finish_reason == "refused":
            self.finished = True
            self.asked.finished()
            reason = first.error or "the request was refused"
            raise refusal(Refused(reason, "overloaded", retry_after_s=first.retry_after_s), "prompt")

    async def read(self) -> Delta:
        """Wait for new output since the last read; the last delta has a finish reason."""
        delta, self._first = self._first, None
        return self._taken(await anext(self._stream) if delta is None else delta)

    def watch(self, on_unread: Callable[[], None], interval: int = 1) -> None:
        """Call `on_unread` whenever output becomes available; at once if some is.

        After its first token a choice becomes available every `interval` tokens, and at its end.
        """
        self._stream.watch(on_unread, interval)
        if self._first is not None:
            on_unread()

    def take(self) -> Delta | None:
        """Return the new output without waiting; None if there is none."""
        delta, self._first = self._first, None
        if delta is None:
            delta = self._stream.take()
        elif (more := self._stream.take()) is not None:
            delta = delta.merged(more)
        return None if delta is None else self._taken(delta)

    def _taken(self, delta: Delta) -> Delta:
        self.num_tokens += delta.num_tokens
        if self.thoughts is not None:
            self.thoughts.feed(delta)
        asked = self.asked
        if self.is_first and delta.num_cached_tokens > asked.num_cached_tokens:
            asked.num_cached_tokens = delta.num_cached_tokens
        if delta.finish_reason is not None:
            self.finished = True
            asked.finished()
        if self.cut is not None and self.num_tokens > self.cut[0]:
            self.cut[1]()
        return delta

    def usage(self) -> dict[str, object]:
        """Return the usage of this choice so far, as vLLM counts it in the chunks of a stream."""
        return usage_object(self.asked.num_prompt_tokens, self.num_tokens, num_thoughts=self.num_thoughts)

    @property
    def num_thoughts(self) -> int | None:
        """Number of reasoning tokens; None if reasoning is not parsed."""
        return None if self.thoughts is None else self.thoughts.num_tokens


def usage_object(
    num_prompt_tokens: int,
    num_tokens: int,
    num_cached_tokens: int | None = None,
    num_thoughts: int | None = None,
) -> dict[str, object]:
    """Return OpenAI's `usage`; `num_thoughts` are reasoning tokens, None if reasoning is not parsed."""
    usage: dict[str, object] = {
        "prompt_tokens": num_prompt_tokens,
        "total_tokens": num_prompt_tokens + num_tokens,
        "completion_tokens": num_tokens,
    }
    if num_cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": num_cached_tokens}
    usage["completion_tokens_details"] = None if num_thoughts is None else {"reasoning_tokens": num_thoughts}
    return usage


class AnswerChoices:
    """All choices of one answer, in the order of their prompts."""

    def __init__(self, choices: Sequence[AnswerChoice]) -> None:
        self.all = tuple(choices)

    @property
    def finished(self) -> bool:
        """Whether the last delta of every choice has been read."""
        return all([choice.finished for choice in self.all])

    def usage(self) -> dict[str, object]:
        """Return the usage of the answer so far; each prompt counts once."""
        prompts = [choice.asked for choice in self.all if choice.is_first]
        return usage_object(
            sum(asked.num_prompt_tokens for asked in prompts),
            sum(choice.num_tokens for choice in self.all),
            sum(asked.num_cached_tokens for asked in prompts),
            None if self.all[0].thoughts is None else sum(choice.num_thoughts or 0 for choice in self.all),
        )

    def count_thoughts(self, marks: ThoughtMarks | None, starts_thinking: bool, ends_at_calls: bool) -> None:
        """Count reasoning tokens as well; `marks` is None if the model's marks are not single tokens."""
        if marks is None:
            return
        for choice in self.all:
            choice.thoughts = ThoughtCount(marks, starts_thinking, ends_at_calls)

    def cut_after(self, num_tokens: int, cut: Callable[[], None]) -> None:
        """Call `cut` before more than `num_tokens` tokens of a choice are shown."""
        for choice in self.all:
            choice.cut = num_tokens, cut

    def watch(self, on_unread: Callable[[], None], interval: int = 1) -> None:
        """Call `on_unread` whenever output of any choice becomes available; at once if some is."""
        for choice in self.all:
            choice.watch(on_unread, interval)


async def start_choices(
    llm: LLM, generates: Sequence[Generate], prompt_field: str, at_end: ExitStack
) -> AnswerChoices:
    """Submit the prompts in turn; closing `at_end` cancels unfinished ones.

    Raises ApiError for the first prompt that AsyncLLM or the engine's policy refuses.
    """
    choices: list[AnswerChoice] = []
    may_be_refused = False
    for index, generate in enumerate(generates):
        asked = AskedPrompt(llm, index, generate)
        at_end.callback(asked.cancel_unless_finished)
        accepted = await asked.start(generate, prompt_field)
        may_be_refused = may_be_refused or accepted.may_be_refused
        for stream in accepted.streams:
            choices.append(AnswerChoice(len(choices), asked, stream, is_first=stream is accepted.stream))
    if may_be_refused:
        for choice in choices:
            await choice.confirm()
    return AnswerChoices(choices)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Parts of an answer that a request wants besides the new text.

    `logprobs` and `prompt_logprobs` are the numbers of likeliest tokens to list, or None. `echoes` are texts
    to put before each prompt's choices, or None; with `only_echo` nothing else is shown. `prompt_texts` are
    the prompts as the model reads them, if requested.
    """

    usage: UsageWanted = "never"
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    tokens_as_ids: bool = False
    token_ids: bool = False
    echoes: tuple[str, ...] | None = None
    only_echo: bool = False
    prompt_texts: tuple[str, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether a chunk in the middle of a stream holds text alone."""
        return self.logprobs is None and not self.token_ids


class ChoiceView:
    """Choice as its client sees it; `codec`, if any, turns tokens into text."""

    def __init__(self, choice: AnswerChoice, wanted: Wanted, codec: TokenTexts | None) -> None:
        self.choice = choice
        self.wanted = wanted
        self.has_begun = False
        self._codec = codec
        self._logprobs: Logprobs | None = None
        if codec is not None and wanted.logprobs is not None:
            self._logprobs = Logprobs(codec, wanted.logprobs, wanted.tokens_as_ids)

    @property
    def prompt_ids(self) -> list[int] | None:
        """Token ids of the prompt, if requested."""
        return list(self.choice.asked.prompt_token_ids) if self.wanted.token_ids else None

    @property
    def prompt_text(self) -> str | None:
        """Text of the prompt as the model reads it, if requested."""
        texts = self.wanted.prompt_texts
        return texts[self.choice.asked.index] if texts else None

    def token_ids(self, delta: Delta) -> list[int] | None:
        """Return the ids of the new tokens, if requested."""
        return list(delta.token_ids) if self.wanted.token_ids else None

    def text(self, delta: Delta, is_first: bool) -> str:
        """Return the new text, after any echoed text."""
        echoes = self.wanted.echoes
        echo = echoes[self.choice.asked.index] if echoes is not None and is_first else ""
        return echo if self.wanted.only_echo else echo + delta.text

    def completion_logprobs(self, delta: Delta, is_first: bool) -> Json | None:
        """Return log probabilities of the new tokens, after those of an echoed prompt."""
        if self._logprobs is None:
            return None
        echoed = delta.prompt_logprobs if is_first and self.wanted.echoes is not None else ()
        new = () if self.wanted.only_echo else delta.logprobs
        return self._logprobs.completion(self.choice.asked.prompt_token_ids, echoed, new)

    def chat_logprobs(self, delta: Delta) -> Json | None:
        """Return log probabilities of the new tokens."""
        return None if self._logprobs is None else self._logprobs.chat(delta.logprobs)

    def prompt_logprobs(self, delta: Delta) -> list[Json | None] | None:
        """Return log probabilities of the prompt's tokens, if requested."""
        if self.wanted.prompt_logprobs is None or self._codec is None:
            return None
        return prompt_logprobs(self._codec, delta.prompt_logprobs)
