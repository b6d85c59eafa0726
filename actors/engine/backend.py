"""Interfaces of backends, which compute an engine's steps, and of engine cores in other processes."""

from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Never, Protocol, runtime_checkable

from sundog.actors.core.params.sampling import Constraint
from sundog.actors.engine.reports import ActorReport
from sundog.actors.kernel.actor import Actor, Ref, Reply
from sundog.actors.messages import (
    Batch,
    Capacity,
    ChangeAdapters,
    Done,
    EngineRefs,
    PolicyFailed,
    Refused,
    StepOutput,
    StepResult,
)


class Backend(Protocol):
    """Computing part of an engine: torch in `runtime/`, a cost model in `sim/`.

    A backend that can execute many decode steps at once is also a `DoesRuns`, and answers with a Reply.
    """

    def load(self) -> Coroutine[object, object, Capacity]:
        """Load the model and allocate its KV cache."""
        ...

    def execute(self, batch: Batch) -> Coroutine[object, object, StepResult] | Reply[StepResult]:
        """Apply the batch to the backend's state and compute its step(s), after all earlier ones.

        Returns a coroutine, which the Runner awaits before it passes the next batch, or a Reply with a
        StepResult, for a backend with its own time and its own queue.
        """
        ...

    async def close(self) -> None:
        """Release everything that `load` took."""
        ...


@runtime_checkable
class DoesRuns(Protocol):
    """Backend that can execute a batch of many decode steps."""

    def interrupt(self) -> None:
        """End the current run of decode steps at the next step boundary."""
        ...


@runtime_checkable
class WatchesActors(Protocol):
    """Backend that watches whether the actors of its core make progress."""

    def watch(self, actors: Sequence[Actor[Never]]) -> None:
        """Watch these actors, which have started."""
        ...


@runtime_checkable
class PricesSteps(Protocol):
    """Backend with modelled time, a source of `StepTimes`."""

    def step_s(self, prefill_tokens: int, decodes: int, context_tokens: int) -> float:
        """Return the seconds of a step with these prompt tokens and decodes over this total context."""
        ...


@runtime_checkable
class LoadsAdapters(Protocol):
    """Backend whose LoRA adapters can be loaded and unloaded while it runs."""

    async def change_adapters(self, change: ChangeAdapters) -> Done | Refused:
        """Load or unload adapters between two steps."""
        ...


@runtime_checkable
class DiesUnnoticed(Protocol):
    """Backend that may be dead for a while before its engine is reported as crashed."""

    @property
    def missed(self) -> Collection[str]:
        """Requests in batches that arrived after the backend's death and were ignored."""
        ...


@runtime_checkable
class CompilesGrammars(Protocol):
    """Backend for requests with grammars, which take long to compile."""

    def hold_grammar(self, constraint: Constraint) -> int | None:
        """Hold a compiled grammar until it is released and return its bytes; None if it is not compiled. Runs
        on the event loop.
        """
        ...

    def let_go_grammar(self, constraint: Constraint) -> None:
        """Release a grammar on behalf of one holder."""
        ...

    def compile_grammar(self, constraint: Constraint) -> None:
        """Compile and store a grammar; blocks the thread. If it cannot be compiled, its request fails at the
        first token.
        """
        ...


class Listener(Protocol):
    """Receiver of every step's output: an actor here or in another process."""

    def ref(self, sender: str, *, counted: bool = True) -> Ref[StepOutput | PolicyFailed]:
        """Return the listener's address for `sender`."""
        ...


@runtime_checkable
class RemoteCore(Protocol):
    """Core in another process: scheduler, KV cache, executor and runners, with its own backend."""

    async def run_core(self, listeners: Sequence[Listener], on_up: Callable[[EngineRefs], None]) -> None:
        """Run the core to its end, as `run_engine_core` does here; raise whatever ends it early."""
        ...

    def reports(self) -> Sequence[ActorReport]:
        """Return the last reports of its actors."""
        ...


Engine = Backend | RemoteCore
"""Engine of a replica: a backend in this process, or a whole core in another."""
