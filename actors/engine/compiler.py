"""The Compiler: grammars of new requests are compiled here, beside the steps that other requests need.

As in vLLM, a request enters the queue once its grammar is compiled. Grammars are compiled one after another.
"""

from dataclasses import dataclass

from sundog.actors.core.params.sampling import Constraint
from sundog.actors.engine.backend import CompilesGrammars
from sundog.actors.kernel.actor import Actor, Handled, Tap, answer
from sundog.actors.kernel.clock import run_blocking


@dataclass(frozen=True, slots=True)
class Compile:
    """Scheduler asks Compiler to have a grammar compiled before a step needs it."""

    constraint: Constraint

    def answered_by(self, answer: "Compiled") -> "Compile":
        """Names its answer, for a type checker."""
        return self


@dataclass(frozen=True, slots=True)
class Compiled:
    """The grammar is compiled, or cannot be; then its request fails by itself at its first token."""

    constraint: Constraint


class Compiler(Actor[Compile]):
    """Compiles grammars in a thread, in order of arrival."""

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
