"""The Router: which replica a request goes to, and the way back to it for its abort."""

from collections import defaultdict
from contextlib import suppress
from dataclasses import replace

from actors.actor import Actor, ActorDied, Ref, Tap
from actors.messages import Abort, EngineDown, EngineRefs, EngineUp, Released, Siblings, Submit, Undelivered


class Router(Actor[Submit | Siblings | Released | Abort | EngineDown | EngineUp]):
    """`round-robin` takes turns; `least-requests` takes the replica with the fewest unfinished.

    Only replicas that are up are sent requests. When one crashes, the Router reports which requests were
    lost; those sent before it knew of the crash are among them.
    """

    def __init__(self, name: str, policy: str, *, tap: Tap | None = None) -> None:
        super().__init__(name, tap=tap)
        self._policy = policy
        self._engines: list[EngineRefs | None] = []
        """None for a replica that is down."""
        self._replica_of: dict[str, int] = {}
        self._num_requests: list[int] = []
        self._replicas_up: list[int] = []
        """The replicas that are up, in order."""
        self._turn = 0
        self._async_llm: Ref[EngineDown | EngineUp | Undelivered] | None = None

    def connect(self, engine: EngineRefs) -> None:
        """Add a replica, before the Router starts; the Router hangs up on it in the end."""
        self._replicas_up.append(len(self._engines))
        self._engines.append(engine)
        self._num_requests.append(0)

    def report_to(self, async_llm: Ref[EngineDown | EngineUp | Undelivered]) -> None:
        """Learn where to report replicas that are lost and back, before the Router starts."""
        self._async_llm = async_llm

    def handle(self, message: Submit | Siblings | Released | Abort | EngineDown | EngineUp) -> None:
        match message:
            case Submit():
                self._submit((message,))
            case Siblings():
                self._submit(message.submits)
            case Released():
                self._released(message)
            case Abort():
                self._abort(message)
            case EngineDown():
                self._engine_down(message)
            case EngineUp():
                self._engine_up(message)
            case _:
                self.unknown(message)

    async def closed(self) -> None:
        for engine in self._engines:
            if engine is not None:
                engine.close()

    def _submit(self, submits: tuple[Submit, ...]) -> None:
        """Send requests, all to one replica."""
        replica = self._choose()
        engine = None if replica is None else self._engines[replica]
        if replica is None or engine is None:
            return self._report(Undelivered(tuple([submit.request_id for submit in submits])))
        self._num_requests[replica] += len(submits)
        for submit in submits:
            self._replica_of[submit.request_id] = replica
            with suppress(ActorDied):
                engine.scheduler.tell(submit)

    def _choose(self) -> int | None:
        """The replica that is next, of those that are up."""
        if not self._replicas_up:
            return None
        if self._policy == "least-requests":
            return min(self._replicas_up, key=self._num_requests.__getitem__)
        following = (replica for replica in self._replicas_up if replica >= self._turn)
        replica = next(following, self._replicas_up[0])
        self._turn = (replica + 1) % len(self._engines)
        return replica

    def _released(self, released: Released) -> None:
        for name in released.request_ids:
            replica = self._replica_of.pop(name, None)
            if replica is not None:  # else it was lost with its engine
                self._num_requests[replica] -= 1

    def _abort(self, abort: Abort) -> None:
        by_replica: dict[int, list[str]] = defaultdict(list)
        for name in abort.request_ids:
            if name in self._replica_of:
                by_replica[self._replica_of[name]].append(name)
        for replica, names in by_replica.items():
            engine = self._engines[replica]
            assert engine is not None, "a replica that is down has no requests"
            with suppress(ActorDied):
                engine.scheduler.tell(Abort(tuple(names), abort.reason))

    def _engine_down(self, down: EngineDown) -> None:
        lost = tuple(name for name, replica in self._replica_of.items() if replica == down.replica)
        for name in lost:
            del self._replica_of[name]
        self._num_requests[down.replica] = 0
        self._engines[down.replica] = None
        self._replicas_up = [replica for replica in self._replicas_up if replica != down.replica]
        self._report(replace(down, request_ids=lost))

    def _engine_up(self, up: EngineUp) -> None:
        self._engines[up.replica] = up.engine
        self._replicas_up = sorted([*self._replicas_up, up.replica])
        self._report(up)

    def _report(self, message: EngineDown | EngineUp | Undelivered) -> None:
        assert self._async_llm is not None
        self._async_llm.tell(message)
