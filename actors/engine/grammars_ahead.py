"""Grammars of an engine's requests: compiled before a request enters the queue, and held until it ends.

Law: no step compiles a grammar. A request enters once its grammar is compiled and fits beside the grammars
that other requests hold; it holds the grammar until it ends, also while preempted, so that the cache cannot
evict it. Requests with the same grammar share it. Requests that wait for room do so in order; the compiler
serves tenants in turn, so that a tenant with many new grammars delays another's by one.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from sundog.actors.core.params.sampling import Constraint
from sundog.actors.core.queue.client_turns import ClientTurns
from sundog.actors.engine.backend import CompilesGrammars
from sundog.actors.engine.compiler import Compile, Compiled
from sundog.actors.engine.inbox import PullDue
from sundog.actors.kernel.actor import Ref, Reply
from sundog.actors.messages import Submit

MOST_HELD_BYTES = 2**30
"""Maximum bytes of grammars that the requests of an engine hold; a single grammar always has room."""


class GrammarsAhead:
    """Requests whose grammars are being compiled or wait for room, and the grammars that others hold."""

    __slots__ = (
        "_asked",
        "_backend",
        "_compiler",
        "_full",
        "_held",
        "_held_bytes",
        "_holders",
        "_is_compiling",
        "_to_compile",
        "_waiting",
    )

    def __init__(self, compiler: Ref[Compile], backend: CompilesGrammars) -> None:
        self._compiler = compiler
        self._backend = backend
        self._waiting: dict[Constraint, list[Submit | PullDue]] = {}
        self._full: deque[Constraint] = deque()
        """Compiled grammars of waiting requests without room."""
        self._held: dict[str, Constraint] = {}
        """Grammar of each queued or running request that has one."""
        self._holders: dict[Constraint, tuple[int, int]] = {}
        """Number of requests that hold each grammar, and its bytes."""
        self._held_bytes = 0
        self._asked: list[Reply[Compiled]] = []
        self._to_compile = ClientTurns[Constraint]()
        self._is_compiling = False

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return sum([len(waiting) for waiting in self._waiting.values()])

    @property
    def receiver(self) -> str:
        return self._compiler.receiver

    def take_asked(self) -> list[Reply[Compiled]]:
        """Return the pending replies of the Compiler that were requested since the last call."""
        asked, self._asked = self._asked, []
        return asked

    def waits(self, due: Submit | PullDue) -> bool:
        """Hold the request's grammar, if it has one; return whether the request must wait for it."""
        submit = _submit_of(due)
        constraint = submit.sampling.constraint
        if constraint is None:
            return False
        if constraint in self._waiting:
            self._waiting[constraint].append(due)
            return True
        if self._hold(submit.request_id, constraint):
            return False
        self._waiting[constraint] = [due]
        self._compile(constraint, submit.tenant)
        return True

    def compiled(self, constraint: Constraint) -> list[Submit | PullDue]:
        """Return the requests that waited for this grammar, which is now compiled, and have room."""
        self._is_compiling = False
        self._full.append(constraint)
        return self._admit()

    def let_go(self, request_ids: Iterable[str]) -> list[Submit | PullDue]:
        """Release the grammars of requests that ended on this engine; return waiting requests for which there
        is now room.
        """
        has_room = False
        for name in request_ids:
            if (constraint := self._held.pop(name, None)) is None:
                continue
            count, num_bytes = self._holders[constraint]
            if count > 1:
                self._holders[constraint] = count - 1, num_bytes
                continue
            self._free(constraint)
            has_room = True
        return self._admit() if has_room and self._full else []

    def release(self, request_ids: Sequence[str]) -> list[Submit | PullDue]:
        """Remove requests, which were aborted or withdrawn, from those that wait; return the removed ones."""
        released: list[Submit | PullDue] = []
        for constraint, waiting in self._waiting.items():
            gone = [due for due in waiting if _submit_of(due).request_id in request_ids]
            if gone:
                released += gone
                self._waiting[constraint] = [due for due in waiting if due not in gone]
        return released

    def close(self) -> None:
        """Release everything, and close the Compiler's address."""
        for constraint in [*self._holders]:
            self._free(constraint)
        self._held.clear()
        self._compiler.close()

    def _hold(self, request_id: str, constraint: Constraint) -> bool | None:
        """Hold a grammar for one more request; False if there is no room, None if it is not compiled."""
        if request_id in self._held:
            return True
        count, num_bytes = self._holders.get(constraint, (0, 0))
        if not count:
            if self._full and self._full[0] != constraint:
                return False
            found_bytes = self._backend.hold_grammar(constraint)
            if found_bytes is None:
                return None
            if self._holders and self._held_bytes + found_bytes > MOST_HELD_BYTES:
                self._backend.let_go_grammar(constraint)
                return False
            num_bytes = found_bytes
            self._held_bytes += num_bytes
        self._held[request_id] = constraint
        self._holders[constraint] = count + 1, num_bytes
        return True

    def _admit(self) -> list[Submit | PullDue]:
        """Return the requests for whose compiled grammar there is now room, and continue compiling."""
        admitted: list[Submit | PullDue] = []
        while self._full:
            constraint = self._full[0]
            waiting = self._waiting[constraint]
            is_held = self._hold(_submit_of(waiting[0]).request_id, constraint) if waiting else True
            if is_held is False:
                break
            self._full.popleft()
            if is_held is None:  # the cache lost it while it waited for room
                self._compile(constraint, _submit_of(waiting[0]).tenant)
                continue
            for due in waiting[1:]:
                self._hold(_submit_of(due).request_id, constraint)
            admitted += self._waiting.pop(constraint)
        self._compile_next()
        return admitted

    def _compile(self, constraint: Constraint, tenant: str | None) -> None:
        self._to_compile.put(tenant, constraint)
        self._compile_next()

    def _compile_next(self) -> None:
        """Request the next grammar, unless one is being compiled or waits for room: it would be evicted.

        Grammars for which no request waits any more are skipped.
        """
        while not (self._is_compiling or self._full) and (constraint := self._to_compile.take()) is not None:
            if self._waiting[constraint]:
                self._is_compiling = True
                self._asked.append(self._compiler.request(Compile(constraint)))
            else:
                del self._waiting[constraint]

    def _free(self, constraint: Constraint) -> None:
        _, num_bytes = self._holders.pop(constraint)
        self._held_bytes -= num_bytes
        self._backend.let_go_grammar(constraint)


def _submit_of(due: Submit | PullDue) -> Submit:
    return due if isinstance(due, Submit) else due.message.submit
