"""The stream from AsyncLLM to one reader: unread deltas merge, so a slow reader costs nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from sundog.actors.core.batch import FinishReason
from sundog.actors.core.params.logprobs import TokenLogprobs


@dataclass(slots=True)
class Delta:
    """New text and tokens of one request since the last read.

    `finish_reason` is None until the last delta. `error` says what happened to a request that failed or was
    refused, and `retry_after_s` when the latter may come again. `stop_reason` is the stop string or token
    that ended it.
    `times_s` are the end times of the steps that produced the tokens, one each. Where they were asked for,
    `logprobs` has one entry for each of `token_ids`, and `prompt_logprobs`, with the first token, one for
    each token of the prompt, None for the first of them. `vector` answers a request with `pooling`
    (`StepResult.vectors`).
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    num_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_cached_tokens: int = 0
    times_s: tuple[float, ...] = ()
    error: str | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()
    retry_after_s: float | None = None
    vector: bytes | None = None

    def merged(self, later: "Delta") -> "Delta":
        """This delta and a later one as if they had been written at once."""
        return joined([self, later])


def joined(deltas: Sequence[Delta]) -> Delta:
    """Deltas, in order, as if they had been written at once. O(their contents)."""
    if len(deltas) == 1:
        return deltas[0]
    last = deltas[-1]
    return Delta(
        "".join([delta.text for delta in deltas]),
        tuple([token for delta in deltas for token in delta.token_ids]),
        num_tokens=sum([delta.num_tokens for delta in deltas]),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        num_cached_tokens=max([delta.num_cached_tokens for delta in deltas]),
        times_s=tuple([time_s for delta in deltas for time_s in delta.times_s]),
        error=last.error,
        logprobs=tuple([each for delta in deltas for each in delta.logprobs]),
        prompt_logprobs=next((delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs), ()),
        retry_after_s=last.retry_after_s,
        vector=last.vector,
    )


MOST_UNREAD = 256
"""Deltas that are kept apart; more are joined before they are read, so that few objects are left of them."""


class DeltaStream:
    """A stream with one writer that never waits, and one reader.

    It is a task that reads `async for delta in stream` until the last, or one that is told by `watch` when
    there is something to `take`, and never waits itself.
    """

    __slots__ = ("_done", "_interval", "_is_due", "_num_unread", "_on_unread", "_task", "_unread")

    def __init__(self) -> None:
        self._on_unread: Callable[[], None] | None = None
        self._unread: list[Delta] = []
        """The deltas that the reader has not taken: joined when it reads, so that a write costs the same."""
        self._done = False
        self._task: trio.lowlevel.Task | None = None
        self._interval = self._num_unread = 1
        self._is_due = False
        """True if what is unread may be taken, by a reader that watches."""

    def put(self, delta: Delta) -> None:
        """Add a delta; it merges with what the reader has not taken yet."""
        unread = self._unread
        unread.append(delta)
        if self._on_unread is not None and not self._is_due:
            self._num_unread += delta.num_tokens
            if self._num_unread >= self._interval or delta.finish_reason is not None:
                self._is_due = True
                self._on_unread()
        if len(unread) > MOST_UNREAD:
            self._unread = [joined(unread)]
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    def __aiter__(self) -> "DeltaStream":
        return self

    async def __anext__(self) -> Delta:
        if self._done:
            raise StopAsyncIteration
        if self._task is not None:
            raise RuntimeError(f"a stream has one reader, and the task {self._task.name} reads this one")
        if not self._unread:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        else:
            await trio.lowlevel.checkpoint()
        return self._taken()

    def watch(self, on_unread: Callable[[], None], interval: int = 1) -> None:
        """Have this called whenever there is something to take and there was nothing; at once if there is.

        There is when `interval` tokens are unread, or the first delta, or the last. It is called by the
        writer, in whose stack it must do as good as nothing.
        """
        self._on_unread = on_unread
        self._interval = self._num_unread = interval
        if self._unread:
            self._is_due = True
            on_unread()

    def take(self) -> Delta | None:
        """Return what there is to take, without waiting for it; None if there is nothing."""
        return self._taken() if self._unread and (self._is_due or self._on_unread is None) else None

    def _taken(self) -> Delta:
        unread, self._unread = self._unread, []
        self._is_due, self._num_unread = False, 0 if self._interval > 1 else 1
        delta = unread[0] if len(unread) == 1 else joined(unread)
        self._done = delta.finish_reason is not None
        return delta

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED
