"""The Runner: one rank's shell around a Backend."""

from collections.abc import Awaitable
from typing import Any, Protocol

from actors.actor import Actor, Reply, Tap
from actors.messages import Batch, Capacity, Interrupt, Load, StepResult


class Backend(Protocol):
    """What computes: torch in `runtime/`, a cost model in `sim/`.

    One that can be asked for runs of many steps answers with a Reply, and has a fourth method:
    `interrupt()` ends the run under way at the next step boundary.
    """

    async def load(self) -> Capacity:
        """Make the model and its KV cache ready."""
        ...

    def execute(self, batch: Batch) -> Awaitable[StepResult] | Reply:
        """Fold the batch into the backend's state and do its step(s), after those before it.

        Either a coroutine, which the Runner waits for before it hands over the next batch, or a
        Reply with a StepResult, for a backend that keeps its own time and its own queue.
        """
        ...

    async def close(self) -> None:
        """Give back what `load` took."""
        ...


class Runner(Actor):
    """Hands the Executor's messages to its backend, one after another."""

    def __init__(self, name: str, backend: Backend, *, tap: Tap | None = None) -> None:
        super().__init__(name, capacity=4, tap=tap)
        self._backend = backend
        self._interrupt = getattr(backend, "interrupt", None)

    def handle(self, message: Any) -> Any:
        match message:
            case Batch():
                return self._backend.execute(message)
            case Interrupt():
                if self._interrupt is not None:
                    self._interrupt()
                return None
            case Load():
                return self._backend.load()
        return super().handle(message)
