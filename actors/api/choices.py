"""The choices of one answer: asked for together, read in any order, never left running unread.

Law: a choice that its client does not read to the end is cancelled at the moment the HTTP request
ends, for whatever reason. The id is made here and not by AsyncLLM, so that a choice whose client
leaves while AsyncLLM is still replying can be cancelled too.
"""

from collections.abc import Sequence
from contextlib import ExitStack, suppress

import trio

from actors.actor import ActorDied
from actors.api.context import LLM
from actors.api.errors import refusal
from actors.messages import Accepted, Cancel, Generate, Refused
from actors.stream import Delta

Read = tuple["Choice", Delta]


class Usage:
    """Token counts so far, over all choices of one answer."""

    __slots__ = ("num_cached_tokens", "num_prompt_tokens", "num_tokens")

    def __init__(self) -> None:
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_tokens = 0

    def as_json(self) -> dict[str, object]:
        """OpenAI's `usage` object."""
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_tokens,
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens},
        }


class Choice:
    """One choice of an answer: a request to the engine, and whether its last delta was read."""

    __slots__ = ("_accepted", "_llm", "_num_cached_tokens", "_usage", "finished", "index", "request_id")

    def __init__(self, llm: LLM, index: int, request_id: str, usage: Usage) -> None:
        self._llm = llm
        self._accepted: Accepted | None = None
        self._usage = usage
        self._num_cached_tokens = 0
        self.index = index
        self.request_id = request_id
        self.finished = False

    async def start(self, generate: Generate, prompt_field: str) -> None:
        """Ask AsyncLLM; raises ApiError if it refuses."""
        reply = await self._llm.ask(generate)
        if isinstance(reply, Refused):
            self.finished = True
            raise refusal(reply, prompt_field)
        self._accepted = reply
        self._usage.num_prompt_tokens += reply.num_prompt_tokens

    async def read(self) -> Delta:
        """What is new since the last read; the last delta has a finish reason."""
        assert self._accepted is not None
        delta = await anext(self._accepted.stream)
        self._usage.num_tokens += delta.num_tokens
        if delta.num_cached_tokens > self._num_cached_tokens:
            self._usage.num_cached_tokens += delta.num_cached_tokens - self._num_cached_tokens
            self._num_cached_tokens = delta.num_cached_tokens
        self.finished = delta.finish_reason is not None
        return delta

    def cancel_unless_finished(self) -> None:
        """Tell AsyncLLM that the rest will not be read; synchronous, so it works inside a cancellation."""
        if not self.finished:
            self.finished = True
            with suppress(ActorDied):  # then there is nothing left to cancel
                self._llm.tell(Cancel(self.request_id))


class Choices:
    """All choices of one answer, in the order of their prompts."""

    def __init__(self, choices: Sequence[Choice], usage: Usage) -> None:
        self.all = tuple(choices)
        self.usage = usage
        self._num_unfinished = len(self.all)
        self._merged: trio.MemoryReceiveChannel[Read] | None = None

    @property
    def finished(self) -> bool:
        """Whether `read` has returned the last delta of every choice."""
        return self._num_unfinished == 0

    def merge_in(self, nursery: trio.Nursery) -> None:
        """Read several choices concurrently from now on, with one task each."""
        if len(self.all) > 1:
            # No room in the channel: what is not yet sent stays in the stream, where it merges.
            send, self._merged = trio.open_memory_channel[Read](0)
            with send:
                for choice in self.all:
                    nursery.start_soon(_pump, choice, send.clone())

    async def read(self) -> Read:
        """The next delta of any choice that has not finished."""
        if self._merged is not None:
            choice, delta = await self._merged.receive()
        else:
            (choice,) = self.all
            delta = await choice.read()
        if delta.finish_reason is not None:
            self._num_unfinished -= 1
        return choice, delta


async def _pump(choice: Choice, send: trio.MemorySendChannel[Read]) -> None:
    with send:
        while not choice.finished:
            await send.send((choice, await choice.read()))


async def start_choices(
    llm: LLM, generates: Sequence[Generate], prompt_field: str, at_end: ExitStack
) -> Choices:
    """Ask for every choice in turn; when `at_end` closes, it cancels those that have not finished.

    Raises ApiError for the first choice that AsyncLLM refuses.
    """
    started, usage = [], Usage()
    for index, generate in enumerate(generates):
        assert generate.request_id is not None
        choice = Choice(llm, index, generate.request_id, usage)
        at_end.callback(choice.cancel_unless_finished)
        await choice.start(generate, prompt_field)
        started.append(choice)
    return Choices(started, usage)
