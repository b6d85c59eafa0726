"""The Runner: one rank's shell around a Backend."""

from typing import Any, Protocol

from actors.actor import Actor, Tap
from actors.messages import Batch, Capacity, Load, StepResult


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


class Runner(Actor):
    """Hands the Executor's messages to its backend, one after another."""

    def __init__(self, name: str, backend: Backend, *, tap: Tap | None = None) -> None:
        super().__init__(name, capacity=4, tap=tap)
        self._backend = backend

    async def handle(self, message: Any) -> Any:
        match message:
            case Batch():
                return await self._backend.execute(message)
            case Load():
                return await self._backend.load()
        return await super().handle(message)

    async def closed(self) -> None:
        await self._backend.close()
