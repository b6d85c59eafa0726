"""The stream from AsyncLLM to one reader. Unread deltas merge, so that a slow reader costs nothing."""

from collections.abc import Callable, Sequence

import trio

from sundog.actors.core.batch import FinishReason
from sundog.actors.core.params.logprobs import TokenLogprobs
from sundog.actors.core.records import dataclass


@dataclass(slots=True)
class Delta:
    """New text and tokens of one request since the last read.

    `finish_reason` is None until the last delta. `error` is why a request failed or was refused, and
    `retry_after_s` when a refused one may be sent again. `stop_reason` is the stop string or token. `times_s`
    has the end of the step of each token. If requested, `logprobs` has an entry for each of `token_ids`, and
    `prompt_logprobs`, with the first token, one for each prompt token, None for the first of them. `vector`
    is the answer to a request with `pooling` (`StepResult.vectors`).
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
        """Return this delta and a later one as one."""
        return joined([self, later])


def joined(deltas: Sequence[Delta]) -> Delta:
    """Merge deltas, in order. O(their contents)."""
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
"""Number of unread deltas kept apart; more are merged before they are read, to limit the number of objects.
"""


class DeltaStream:
    """Stream with one writer, which never waits, and one reader.

    The reader is a task that reads `async for delta in stream` until the last, or a callback set by `watch`
    that takes what there is and never waits.
    """

    __slots__ = ("_done", "_interval", "_is_due", "_num_unread", "_on_unread", "_task", "_unread")

    def __init__(self) -> None:
        self._on_unread: Callable[[], None] | None = None
        self._unread: list[Delta] = []
        """Deltas that the reader has not taken, joined when it reads: a write has constant cost."""
        self._done = False
        self._task: trio.lowlevel.Task | None = None
        self._interval = self._num_unread = 1
        self._is_due = False
        """Whether a watching reader may take the unread deltas."""

    def put(self, delta: Delta) -> None:
        """Add a delta, merging it with unread ones."""
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
        """Call `on_unread` whenever deltas become available; at once if some are.

        Deltas become available when `interval` tokens are unread, and with the first and the last delta. The
        writer makes the call on its own stack, so it must return quickly.
        """
        self._on_unread = on_unread
        self._interval = self._num_unread = interval
        if self._unread:
            self._is_due = True
            on_unread()

    def take(self) -> Delta | None:
        """Return the available deltas without waiting; None without any."""
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
