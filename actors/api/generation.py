"""The generations of one HTTP request: asked for together, read in any order, never left behind.

Law: a generation that its client does not read to the end is cancelled, at the moment the HTTP
request ends for whatever reason. The request's id is made here and not by AsyncLLM, so that a
client who leaves while AsyncLLM is still answering can be cancelled too.
"""

from collections.abc import Sequence
from contextlib import ExitStack, suppress

import trio

from actors.actor import ActorDied
from actors.api.errors import refusal
from actors.api.service import LLM
from actors.messages import Accepted, Cancel, Generate, Refused
from actors.stream import Delta

Read = tuple["Generation", Delta]


class Generation:
    """One choice of an answer and what is known of it so far."""

    __slots__ = ("_accepted", "_llm", "finished", "index", "num_cached_tokens", "num_tokens", "request_id")

    def __init__(self, llm: LLM, index: int, request_id: str) -> None:
        self._llm = llm
        self._accepted: Accepted | None = None
        self.index = index
        self.request_id = request_id
        self.num_tokens = 0
        self.num_cached_tokens = 0
        self.finished = False

    async def start(self, generate: Generate, prompt_field: str) -> None:
        """Ask AsyncLLM; raises ApiError if it refuses."""
        reply = await self._llm.ask(generate)
        if isinstance(reply, Refused):
            self.finished = True
            raise refusal(reply, prompt_field)
        self._accepted = reply

    @property
    def num_prompt_tokens(self) -> int:
        return self._accepted.num_prompt_tokens if self._accepted is not None else 0

    async def read(self) -> Delta:
        """What is new since the last read; the last delta has a finish reason."""
        assert self._accepted is not None
        delta = await anext(self._accepted.stream)
        self.num_tokens += delta.num_tokens
        self.num_cached_tokens = max(self.num_cached_tokens, delta.num_cached_tokens)
        self.finished = delta.finish_reason is not None
        return delta

    def cancel_unless_finished(self) -> None:
        """Tell AsyncLLM that nobody reads on; synchronous, so it works inside a cancellation."""
        if not self.finished:
            self.finished = True
            with suppress(ActorDied):  # then there is nothing left to cancel
                self._llm.tell(Cancel(self.request_id))


class Generations:
    """All choices of one answer, in the order of their prompts."""

    def __init__(self, all_of_them: Sequence[Generation]) -> None:
        self.all = tuple(all_of_them)
        self._merged: trio.MemoryReceiveChannel[Read] | None = None

    def merge_in(self, nursery: trio.Nursery) -> None:
        """Read several generations concurrently from now on, with one task each."""
        if len(self.all) > 1:
            # No room in the channel: what is not yet sent stays in the stream, where it merges.
            send, self._merged = trio.open_memory_channel[Read](0)
            with send:
                for generation in self.all:
                    nursery.start_soon(_pump, generation, send.clone())

    async def read(self) -> Read | None:
        """The next delta of any generation, and None when all have finished."""
        if self._merged is None:
            (only,) = self.all
            return None if only.finished else (only, await only.read())
        try:
            return await self._merged.receive()
        except trio.EndOfChannel:
            return None

    def usage(self) -> dict[str, object]:
        """Token counts so far, over all choices."""
        num_prompt_tokens = sum(each.num_prompt_tokens for each in self.all)
        num_tokens = sum(each.num_tokens for each in self.all)
        return {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": num_tokens,
            "total_tokens": num_prompt_tokens + num_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(each.num_cached_tokens for each in self.all)},
        }


async def _pump(generation: Generation, send: trio.MemorySendChannel[Read]) -> None:
    with send:
        while not generation.finished:
            await send.send((generation, await generation.read()))


async def start_all(
    llm: LLM, generates: Sequence[Generate], prompt_field: str, at_end: ExitStack
) -> Generations:
    """Ask for every completion in turn; `at_end` cancels what has not finished when it closes.

    Raises ApiError for the first that AsyncLLM refuses.
    """
    started = []
    for index, generate in enumerate(generates):
        assert generate.request_id is not None
        generation = Generation(llm, index, generate.request_id)
        at_end.callback(generation.cancel_unless_finished)
        await generation.start(generate, prompt_field)
        started.append(generation)
    return Generations(started)
