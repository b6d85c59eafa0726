"""The stream from AsyncLLM to one reader: unread deltas merge, so a slow reader costs nothing."""

from dataclasses import dataclass

import trio


@dataclass(frozen=True, slots=True)
class Delta:
    """New text and tokens of one request since the last read.

    `finish_reason` is None until the last delta: stop, length, abort or error; `error` says what
    happened in the last case. `stop_reason` is the stop string or token that ended it.
    `times_s` are the end times of the steps that produced the tokens, one each.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    num_tokens: int = 0
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    num_cached_tokens: int = 0
    times_s: tuple[float, ...] = ()
    error: str | None = None

    def merged(self, later: "Delta") -> "Delta":
        """This delta and a later one as if they had been written at once."""
        return Delta(
            self.text + later.text,
            self.token_ids + later.token_ids,
            self.num_tokens + later.num_tokens,
            later.finish_reason,
            later.stop_reason,
            max(self.num_cached_tokens, later.num_cached_tokens),
            self.times_s + later.times_s,
            later.error,
        )


class DeltaStream:
    """One writer that never waits, one reader: `async for delta in stream` until the last."""

    __slots__ = ("_done", "_pending", "_task")

    def __init__(self) -> None:
        self._pending: Delta | None = None
        self._done = False
        self._task: trio.lowlevel.Task | None = None

    def put(self, delta: Delta) -> None:
        """Add what is new; merges with whatever the reader has not taken yet."""
        self._pending = delta if self._pending is None else self._pending.merged(delta)
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    def __aiter__(self) -> "DeltaStream":
        return self

    async def __anext__(self) -> Delta:
        if self._done:
            raise StopAsyncIteration
        if self._pending is None:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        else:
            await trio.lowlevel.checkpoint()
        delta, self._pending = self._pending, None
        assert delta is not None
        self._done = delta.finish_reason is not None
        return delta

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED
