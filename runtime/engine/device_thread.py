"""Threads for a device that computes while the host goes on: one launches steps, another waits for them.

Only the launching thread uses the engine, so that a step is launched as soon as it is requested. Replies are
set on the event loop. If a step raises, it fails, and so does every later one.
"""

from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple

import trio

from sundog.actors.kernel.actor import Reply
from sundog.actors.messages import Batch, StepResult
from sundog.runtime.engine.engine import Engine, Flight


class AskedStep(NamedTuple):
    """Request to launch a step."""

    batch: Batch
    reply: Reply[StepResult]


class LaunchedStep(NamedTuple):
    """Step in flight."""

    flight: Flight
    reply: Reply[StepResult]


class EndedStep(NamedTuple):
    """Step whose tokens have arrived."""

    flight: Flight
    reply: Reply[StepResult]
    end_s: float


class DeviceThread:
    """Steps of one engine, in order of request; created within the event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = trio.lowlevel.current_trio_token()
        self._clock = trio.lowlevel.current_clock()
        self._todo: SimpleQueue[AskedStep | EndedStep | None] = SimpleQueue()
        self._begun: SimpleQueue[LaunchedStep | None] = SimpleQueue()
        self._error: Exception | None = None
        self._threads = [Thread(target=work, daemon=True) for work in (self._launch, self._wait)]
        for thread in self._threads:
            thread.start()

    def execute(self, batch: Batch) -> Reply[StepResult]:
        """Return a reply that gets the batch's result at the end of the step."""
        reply: Reply[StepResult] = Reply()
        self._todo.put(AskedStep(batch, reply))
        return reply

    def close(self) -> None:
        """End both threads after the steps in flight."""
        self._todo.put(None)
        for thread in self._threads:
            thread.join()

    def _launch(self) -> None:
        while (item := self._todo.get()) is not None:
            try:
                if self._error is not None:
                    raise self._error
                if isinstance(item, EndedStep):
                    self._answer(item.reply, self._engine.finish(item.flight, item.end_s))
                else:
                    self._begun.put(LaunchedStep(self._engine.launch(item.batch), item.reply))
            except Exception as error:  # the task that waits for the answer raises it
                self._error = error
                self._answer(item.reply, error)
        self._begun.put(None)

    def _wait(self) -> None:
        while (item := self._begun.get()) is not None:
            with suppress(Exception):  # what a device has to say, `finish` raises again
                self._engine.wait(item.flight)
            self._todo.put(EndedStep(item.flight, item.reply, self._clock.current_time()))

    def _answer(self, reply: Reply[StepResult], answer: StepResult | Exception) -> None:
        with suppress(trio.RunFinishedError):
            if isinstance(answer, StepResult):
                self._loop.run_sync_soon(reply.set, answer)
            else:
                self._loop.run_sync_soon(reply.fail, answer)
