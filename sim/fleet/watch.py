"""Input of scalers: the requests of each pool, and the computing time of its engines."""

from collections.abc import Sequence

from sundog.actors.core.routers.fleet_state import Role
from sundog.actors.kernel.actor import Actor
from sundog.actors.messages import EngineDown, EngineUp, Heard, Routed, StepOutput, Submit, Unserved

SOMEWHERE = -1
"""Number that stands for the pool of a request without a pool."""


class Visit:
    """Request in one pool: the whole request, its prompt, or its answer.

    `since_s` is its arrival, or when its prompt was handed over; TTFT counts from there.
    """

    __slots__ = ("arrival_s", "has_token", "is_handed", "pool", "since_s")

    def __init__(self, arrival_s: float, pool: int) -> None:
        self.arrival_s = self.since_s = arrival_s
        self.pool = pool
        self.has_token = self.is_handed = False


class PoolCounts:
    """Requests of a pool: current ones, and events since its scaler's last call."""

    __slots__ = ("arrivals", "num_unfinished", "ttfts_s")

    def __init__(self) -> None:
        self.num_unfinished = self.arrivals = 0
        self.ttfts_s: list[float] = []


class FleetWatch(Actor[Heard]):
    """Listener that counts requests for scalers, by pool number.

    A request that several pools of a role might serve counts in all of them until one of them has it.
    """

    def __init__(self, pools: Sequence[int], roles: Sequence[Role]) -> None:
        """`pools` and `roles` have the pool and the role of each replica."""
        super().__init__("fleet-watch")
        self._pool_of, self._roles = pools, roles
        self._first_pools = sorted(
            {pool for pool, role in zip(pools, roles, strict=True) if role != "decode"}
        )
        self._last_pools = sorted({pool for pool, role in zip(pools, roles, strict=True) if role == "decode"})
        self.prompts: dict[int, int] = {}
        """Number of requests by prompt length."""
        self._visits: dict[str, Visit] = {}
        self._counts = [PoolCounts() for _ in range(max(pools) + 1)]
        num_replicas = len(pools)
        self.running = [0] * num_replicas
        self.is_down = [False] * num_replicas
        self._busy_s = [0.0] * num_replicas
        self._since_s: list[float | None] = [None] * num_replicas
        """Begin of each replica's current computation, in seconds; a decode run counts as one."""

    def handle(self, message: Heard) -> None:
        match message:
            case Submit():
                arrived = self._visits[message.request_id] = Visit(message.arrival_s, SOMEWHERE)
                self._enter(arrived)
                num_tokens = message.num_prompt_tokens
                self.prompts[num_tokens] = self.prompts.get(num_tokens, 0) + 1
            case Routed():
                for name in message.request_ids:
                    if (visit := self._visits.get(name)) is not None:
                        self._routed(visit, message.replica)
            case StepOutput():
                self._step(message)
            case EngineDown():
                self.is_down[message.replica] = True
                self.running[message.replica] = 0
                self._fall_silent(message.replica, self.clock.now_s())
            case EngineUp():
                self.is_down[message.replica] = False
            case Unserved():
                for name in message.request_ids:
                    self._end(name)
            case _:
                pass

    def busy_s(self, replica: int, until_s: float) -> float:
        """Return the seconds for which a replica has computed."""
        since_s = self._since_s[replica]
        return self._busy_s[replica] + (0.0 if since_s is None else until_s - since_s)

    def num_unfinished(self, pool: int) -> int:
        """Return the number of requests that are in a pool, or may still be sent to it."""
        return self._counts[pool].num_unfinished

    def since_last(self, pool: int) -> tuple[int, tuple[float, ...]]:
        """Return a pool's arrivals and TTFTs since the last call."""
        counts = self._counts[pool]
        arrivals, ttfts_s = counts.arrivals, tuple(counts.ttfts_s)
        counts.arrivals, counts.ttfts_s = 0, []
        return arrivals, ttfts_s

    # --- requests --------------------------------------------------------------------------------

    def _pools(self, visit: Visit) -> list[int]:
        if visit.pool != SOMEWHERE:
            return [visit.pool]
        return self._last_pools if visit.is_handed else self._first_pools

    def _enter(self, visit: Visit) -> None:
        for pool in self._pools(visit):
            self._counts[pool].num_unfinished += 1
            self._counts[pool].arrivals += 1

    def _leave(self, visit: Visit) -> None:
        for pool in self._pools(visit):
            self._counts[pool].num_unfinished -= 1

    def _end(self, name: str) -> None:
        if (visit := self._visits.pop(name, None)) is not None:
            self._leave(visit)

    def _routed(self, visit: Visit, replica: int) -> None:
        if visit.is_handed and self._roles[replica] != "decode":
            self._leave(visit)
            visit.is_handed, visit.has_token, visit.since_s = False, False, visit.arrival_s
            visit.pool = self._pool_of[replica]
            self._enter(visit)
        else:
            self._found(visit, replica)

    def _found(self, visit: Visit, replica: int) -> None:
        pool = self._pool_of[replica]
        if visit.pool != pool:
            before, others = visit.pool, [each for each in self._pools(visit) if each != pool]
            for each in others:
                self._counts[each].num_unfinished -= 1
                if before == SOMEWHERE:  # its scaler may have been told already
                    self._counts[each].arrivals = max(self._counts[each].arrivals - 1, 0)
            if before != SOMEWHERE:
                self._counts[pool].num_unfinished += 1
            visit.pool = pool

    def _handed(self, name: str, time_s: float) -> None:
        visit = self._visits.get(name)
        if visit is not None:
            self._leave(visit)
            visit.pool, visit.is_handed, visit.has_token, visit.since_s = SOMEWHERE, True, False, time_s
            self._enter(visit)

    # --- engines ---------------------------------------------------------------------------------

    def _fall_silent(self, replica: int, time_s: float) -> None:
        since_s, self._since_s[replica] = self._since_s[replica], None
        if since_s is not None:
            self._busy_s[replica] += max(time_s - since_s, 0.0)

    def _step(self, output: StepOutput) -> None:
        replica, ends, visits = output.replica, output.end_times_s, self._visits
        self.running[replica] = output.num_running
        if not (output.batch.num_tokens or output.num_running):
            # What waits there waits for blocks that another engine fetches. An empty batch beside running
            # requests, as after a preemption, takes no time, and a decode run may follow it.
            self._fall_silent(replica, output.start_s)
        elif ends and self._since_s[replica] is None:
            self._since_s[replica] = output.start_s
        if not (output.num_running or output.num_waiting):
            self._fall_silent(replica, ends[-1] if ends else output.start_s)
        for admission in output.batch.admitted:
            if (visit := visits.get(admission.request_id)) is not None:
                self._found(visit, replica)
        for chunk in output.batch.chunks:
            if not chunk.samples:
                continue
            visit = visits.get(chunk.request_id)
            if visit is not None and not visit.has_token:
                visit.has_token = True
                self._counts[self._pool_of[replica]].ttfts_s.append(ends[0] - visit.since_s)
        for finish in output.finished:
            if finish.reason != "handed":
                self._end(finish.request_id)
            elif self._roles[replica] == "prefill":
                self._handed(finish.request_id, ends[-1] if ends else output.start_s)
