"""Health of the engines: the content of /health, and when requests are refused."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from sundog.actors.messages import (
    Drain,
    EngineDown,
    Health,
    PolicyFailed,
    Refused,
    ReplicaStatus,
    RouterFailed,
)


class ReplicaHealth:
    """State of each replica: up, draining, restarting, dead, or with a replaced policy."""

    def __init__(self, roles: Sequence[str]) -> None:
        """Create the record; `roles` has each replica's role: a request needs one replica of each role that
        occurs.
        """
        self._num_replicas = len(roles)
        parts: dict[str, list[int]] = defaultdict(list)
        for replica, role in enumerate(roles):
            parts[role].append(replica)
        self._parts = tuple(parts.values())
        self._fewest = min(map(len, self._parts))
        """Number of replicas of the rarest role: requests are accepted unless that many are unavailable."""
        self._down: dict[int, EngineDown] = {}
        self._draining: set[int] = set()
        self._replaced: dict[int, PolicyFailed] = {}
        """Replicas whose configured policy was replaced."""
        self._router: RouterFailed | None = None
        """Reason why the Router's configured policy was replaced."""

    def policy_failed(self, failed: PolicyFailed | RouterFailed) -> None:
        """Record a replaced policy: of a replica until its restart, or of the Router for good."""
        if isinstance(failed, RouterFailed):
            self._router = failed
        else:
            self._replaced[failed.replica] = failed

    def down(self, down: EngineDown) -> None:
        """Record the loss of a replica; for good if `retry_after_s` is None."""
        self._down[down.replica] = down
        self._replaced.pop(down.replica, None)

    def up(self, replica: int) -> None:
        """Record that a replica is up again."""
        self._down.pop(replica, None)

    def drain(self, drain: Drain) -> Refused | None:
        """Begin or end the drain of a replica; refused if it is unknown."""
        if not 0 <= drain.replica < self._num_replicas:
            known = f"0 to {self._num_replicas - 1}" if self._num_replicas > 1 else "0 alone"
            return Refused(f"there is no engine {drain.replica}: give {known}", param="engine")
        (self._draining.add if drain.is_draining else self._draining.discard)(drain.replica)
        return None

    def health(self) -> Health:
        """Return the health of all replicas, with the reasons of those that are down."""
        waits = [down.retry_after_s for down in self._down.values() if down.retry_after_s is not None]
        known: dict[int, str] = {number: "it is drained" for number in self._draining}
        failures: list[EngineDown | PolicyFailed] = [*self._replaced.values(), *self._down.values()]
        for failed in failures:
            known[failed.replica] = failed.reason
        reasons = [] if self._router is None else [self._router.reason]
        reasons += [f"replica {number}: {why}" for number, why in sorted(known.items())]
        replicas = tuple(self._replica(number) for number in range(self._num_replicas))
        return Health(self._status(replicas), replicas, "; ".join(reasons), min(waits, default=None))

    def refusal(self) -> Refused | None:
        """Return why new requests are refused; None if a replica that is up accepts them."""
        if not (self._down or self._draining) or len(self._down) + len(self._draining) < self._fewest:
            return None
        health = self.health()
        if health.serves:
            return None
        what = {
            "restarting": "the engine has failed and is starting again",
            "draining": "the engine is drained: it takes no new requests",
        }.get(health.status, "the engine has failed and is dead")
        return Refused(what, kind="unavailable", retry_after_s=health.retry_after_s)

    def _status(
        self, replicas: tuple[ReplicaStatus, ...]
    ) -> Literal["healthy", "degraded", "restarting", "draining", "dead"]:
        for part in self._parts:
            states = [replicas[number] for number in part]
            if "healthy" not in states:
                return "restarting" if "restarting" in states else max(states, key=("dead", "draining").index)
        is_whole = not (self._down or self._draining or self._replaced or self._router)
        return "healthy" if is_whole else "degraded"

    def _replica(self, number: int) -> ReplicaStatus:
        down = self._down.get(number)
        if down is None:
            return "draining" if number in self._draining else "healthy"
        return "dead" if down.retry_after_s is None else "restarting"
