"""The Runner: one rank's shell around a Backend."""

from actors.engine.backend import Backend, DoesRuns
from actors.kernel.actor import Actor, Handled, Tap, answer
from actors.messages import Batch, Interrupt, Load


class Runner(Actor[Batch | Interrupt | Load]):
    """Hands the Executor's messages to its backend, one after another."""

    def __init__(self, name: str, backend: Backend, *, tap: Tap | None = None) -> None:
        super().__init__(name, capacity=4, tap=tap)
        self._backend = backend
        self._does_runs = backend if isinstance(backend, DoesRuns) else None

    def handle(self, message: Batch | Interrupt | Load) -> Handled:
        match message:
            case Batch():
                return answer(message, self._backend.execute(message))
            case Interrupt():
                self._interrupt()
            case Load():
                return answer(message, self._backend.load())
            case _:
                self.unknown(message)
        return None

    def _interrupt(self) -> None:
        if self._does_runs is not None:
            self._does_runs.interrupt()
