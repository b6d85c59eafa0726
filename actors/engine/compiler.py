"""Actor that compiles grammars of new requests while other requests' steps go on.

As in vLLM, a request enters the queue once its grammar is compiled. Grammars are compiled one after another.
"""

from sundog.actors.core.params.sampling import Constraint
from sundog.actors.core.records import dataclass
from sundog.actors.engine.backend import CompilesGrammars
from sundog.actors.kernel.actor import Actor, Handled, Tap, answer
from sundog.actors.kernel.clock import run_blocking


@dataclass(frozen=True, slots=True)
class Compile:
    """Request from the Scheduler to compile a grammar before a step needs it."""

    constraint: Constraint

    def answered_by(self, answer: "Compiled") -> "Compile":
        """Return the message; declares its reply type for the type checker, and is never called."""
        return self


@dataclass(frozen=True, slots=True)
class Compiled:
    """The grammar is compiled, or cannot be; then its request fails at its first token."""

    constraint: Constraint


class Compiler(Actor[Compile]):
    """Actor that compiles grammars in a thread, in order of arrival."""

    def __init__(self, name: str, backend: CompilesGrammars, *, tap: Tap | None = None) -> None:
        super().__init__(name, tap=tap)
        self._backend = backend

    def handle(self, message: Compile) -> Handled:
        match message:
            case Compile():
                return answer(message, self._compile(message.constraint))
            case _:
                self.unknown(message)

    async def _compile(self, constraint: Constraint) -> Compiled:
        await run_blocking(self._backend.compile_grammar, constraint, abandon_on_cancel=True)
        return Compiled(constraint)
