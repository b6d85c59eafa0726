"""The Router: which replica a request goes to, and the way back to it for its abort."""

from collections import defaultdict
from typing import Any

from actors.actor import Actor, Tap
from actors.engine.engine_core import EngineRefs
from actors.messages import Abort, Released, Submit


class Router(Actor):
    """`round-robin` takes turns; `least-requests` takes the replica with the fewest unfinished."""

    def __init__(self, name: str, policy: str, *, tap: Tap | None = None) -> None:
        super().__init__(name, tap=tap)
        self._policy = policy
        self._engines: list[EngineRefs] = []
        self._replica_of: dict[str, int] = {}
        self._num_requests: list[int] = []
        self._turn = 0

    def connect(self, engine: EngineRefs) -> None:
        """Add a replica, before the Router starts; the Router hangs up on it in the end."""
        self._engines.append(engine)
        self._num_requests.append(0)

    def handle(self, message: Any) -> Any:
        match message:
            case Submit():
                self._submit(message)
            case Released():
                for name in message.request_ids:
                    self._num_requests[self._replica_of.pop(name)] -= 1
            case Abort():
                self._abort(message)
            case _:
                super().handle(message)

    async def closed(self) -> None:
        for engine in self._engines:
            engine.scheduler.close()
            engine.kv_cache_manager.close()

    def _submit(self, submit: Submit) -> None:
        replica = self._choose()
        self._replica_of[submit.request_id] = replica
        self._num_requests[replica] += 1
        self._engines[replica].scheduler.tell(submit)

    def _choose(self) -> int:
        if self._policy == "least-requests":
            return min(range(len(self._engines)), key=self._num_requests.__getitem__)
        replica = self._turn
        self._turn = (self._turn + 1) % len(self._engines)
        return replica

    def _abort(self, abort: Abort) -> None:
        by_replica: dict[int, list[str]] = defaultdict(list)
        for name in abort.request_ids:
            if name in self._replica_of:
                by_replica[self._replica_of[name]].append(name)
        for replica, names in by_replica.items():
            self._engines[replica].scheduler.tell(Abort(tuple(names), abort.reason))
