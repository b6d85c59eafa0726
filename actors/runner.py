"""The Runner: one rank's shell around a Backend."""

from typing import Any, Protocol, runtime_checkable

from actors.actor import Actor, Tap
from actors.messages import Batch, Capacity, Interrupt, Load, StepResult


class Backend(Protocol):
    """What computes: torch in `runtime/`, a cost model in `sim/`."""

    async def load(self) -> Capacity:
        """Make the model and its KV cache ready."""
        ...

    async def execute(self, batch: Batch) -> StepResult:
        """Fold the batch into the backend's state and do its step(s)."""
        ...

    async def close(self) -> None:
        """Give back what `load` took."""
        ...


@runtime_checkable
class RunBackend(Backend, Protocol):
    """A backend that can be asked for runs of many steps."""

    def interrupt(self) -> None:
        """End the run under way at the next step boundary."""
        ...


class Runner(Actor):
    """Hands the Executor's messages to its backend, one after another."""

    def __init__(self, name: str, backend: Backend, *, tap: Tap | None = None) -> None:
        super().__init__(name, capacity=4, tap=tap)
        self._backend = backend
        self._run_backend = backend if isinstance(backend, RunBackend) else None

    async def handle(self, message: Any) -> Any:
        match message:
            case Batch(max_steps=1):
                return await self._backend.execute(message)
            case Batch():
                return await self._run(message)
            case Interrupt():
                return None
            case Load():
                return await self._backend.load()
        return await super().handle(message)

    async def _run(self, batch: Batch) -> StepResult:
        """Execute a run of steps; whatever arrives meanwhile is an Interrupt."""
        backend = self._run_backend
        if backend is None:
            return await self._backend.execute(batch)
        self.mailbox.doorbell = backend.interrupt
        if self.mailbox.envelopes:
            backend.interrupt()
        result = await backend.execute(batch)
        self.mailbox.doorbell = None
        return result

    async def closed(self) -> None:
        await self._backend.close()
