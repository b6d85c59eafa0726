"""The health of the engines, as the front knows it: what /health says, and when requests are refused."""

from typing import Literal

from actors.messages import EngineDown, Health, PolicyFailed, Refused, RouterFailed


class ReplicaHealth:
    """Which replicas are up, restarting or dead, and which are served by another policy."""

    __slots__ = ("_down", "_num_replicas", "_replaced", "_router")

    def __init__(self, num_replicas: int) -> None:
        self._num_replicas = num_replicas
        self._down: dict[int, EngineDown] = {}
        self._replaced: dict[int, PolicyFailed] = {}
        """Replicas served by another policy than the one asked for."""
        self._router: RouterFailed | None = None
        """Why requests are routed by another policy than the one asked for."""

    def policy_failed(self, failed: PolicyFailed | RouterFailed) -> None:
        """A replica goes on with another policy until it is started again, or the Router does for good."""
        if isinstance(failed, RouterFailed):
            self._router = failed
        else:
            self._replaced[failed.replica] = failed

    def down(self, down: EngineDown) -> None:
        """A replica is lost; with `retry_after_s` None for good."""
        self._down[down.replica] = down
        self._replaced.pop(down.replica, None)

    def up(self, replica: int) -> None:
        """A replica is back."""
        self._down.pop(replica, None)

    def health(self) -> Health:
        """The health of all replicas now, with the reasons of those that are down."""
        waits = [down.retry_after_s for down in self._down.values() if down.retry_after_s is not None]
        known: dict[int, EngineDown | PolicyFailed] = {**self._replaced, **self._down}
        reasons = [] if self._router is None else [self._router.reason]
        reasons += [f"replica {number}: {why.reason}" for number, why in sorted(known.items())]
        return Health(
            status=self._status(bool(waits)),
            replicas=tuple(self._replica(number) for number in range(self._num_replicas)),
            reason="; ".join(reasons),
            retry_after_s=min(waits, default=None),
        )

    def refusal(self) -> Refused | None:
        """Why no new request is taken, if no replica is up."""
        if len(self._down) < self._num_replicas:
            return None
        health = self.health()
        what = "is starting again" if health.status == "restarting" else "is dead"
        return Refused(
            f"the engine has failed and {what}", kind="unavailable", retry_after_s=health.retry_after_s
        )

    def _status(self, is_restarting: bool) -> Literal["healthy", "degraded", "restarting", "dead"]:
        if not self._down:
            return "degraded" if self._replaced or self._router else "healthy"
        if len(self._down) < self._num_replicas:
            return "degraded"
        return "restarting" if is_restarting else "dead"

    def _replica(self, number: int) -> Literal["healthy", "restarting", "dead"]:
        down = self._down.get(number)
        if down is None:
            return "healthy"
        return "dead" if down.retry_after_s is None else "restarting"
