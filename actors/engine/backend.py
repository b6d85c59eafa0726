"""The seam between the graph and a world: what a Runner runs, or a whole core that runs elsewhere."""

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
    """The computing part of an engine: torch in `runtime/`, a cost model in `sim/`.

    A backend that can be asked for runs of many steps is a `DoesRuns`, too, and answers with a Reply.
    """

    def load(self) -> Coroutine[object, object, Capacity]:
        """Make the model and its KV cache ready."""
        ...

    def execute(self, batch: Batch) -> Coroutine[object, object, StepResult] | Reply[StepResult]:
        """Fold the batch into the backend's state and do its step(s), after all earlier ones.

        Returns a coroutine, which the Runner awaits before it hands over the next batch, or a
        Reply with a StepResult, for a backend that keeps its own time and its own queue.
        """
        ...

    async def close(self) -> None:
        """Release all that `load` took."""
        ...


@runtime_checkable
class DoesRuns(Protocol):
    """The interface of a Backend that may be asked for runs of many steps."""

    def interrupt(self) -> None:
        """End the run under way at the next step boundary."""
        ...


@runtime_checkable
class WatchesActors(Protocol):
    """The interface of a Backend that watches whether the core that it is in goes on."""

    def watch(self, actors: Sequence[Actor[Never]]) -> None:
        """Watch these actors, which have started."""
        ...


@runtime_checkable
class PricesSteps(Protocol):
    """The interface of a Backend whose time is modelled: `StepTimes`."""

    def step_s(self, prefill_tokens: int, decodes: int, context_tokens: int) -> float:
        """Seconds of a step that computes a chunk of a prompt, and decodes that read a context in all."""
        ...


@runtime_checkable
class LoadsAdapters(Protocol):
    """The interface of a Backend whose LoRA adapters may come and go while it runs."""

    async def change_adapters(self, change: ChangeAdapters) -> Done | Refused:
        """Load adapters, or let them go, between two steps."""
        ...


@runtime_checkable
class DiesUnnoticed(Protocol):
    """The interface of a Backend that may be dead for a while before its engine crashes."""

    @property
    def missed(self) -> Collection[str]:
        """The requests in batches that came after its death: it took in none of them."""
        ...


@runtime_checkable
class CompilesGrammars(Protocol):
    """The interface of a Backend whose requests may have grammars, which take long to compile."""

    def hold_grammar(self, constraint: Constraint) -> int | None:
        """Keep it until it is let go, and return its bytes; None if it is not compiled. On the event loop."""
        ...

    def let_go_grammar(self, constraint: Constraint) -> None:
        """It need not be kept any more, for one who held it."""
        ...

    def compile_grammar(self, constraint: Constraint) -> None:
        """Compile and keep it; blocks. One that cannot be compiled fails its request at its first token."""
        ...


class Listener(Protocol):
    """The interface of what hears of every step: an actor, or one that is reached elsewhere."""

    def ref(self, sender: str, *, counted: bool = True) -> Ref[StepOutput | PolicyFailed]:
        """Return its address for `sender`."""
        ...


@runtime_checkable
class RemoteCore(Protocol):
    """A core in another process: scheduler, KV cache, executor and runners, with a backend of their own."""

    async def run_core(self, listeners: Sequence[Listener], on_up: Callable[[EngineRefs], None]) -> None:
        """Run it to its end, as `run_engine_core` runs one here; whatever ends it early is raised."""
        ...

    def reports(self) -> Sequence[ActorReport]:
        """Return the last reports of its actors."""
        ...


Engine = Backend | RemoteCore
"""The engine of a replica: a backend in this process, or a whole core that runs elsewhere."""
