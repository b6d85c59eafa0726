"""The Router's record of its replicas: which are up, the requests sent to each, and their known blocks.

A plain record with one owner, the Router; router policies read it through a `Fleet`. Law: `num_requests` and
`num_tokens` of a replica are those of the requests that were sent there and have not ended.
"""

from collections.abc import Callable, Iterable
from typing import Literal

from sundog.actors.core.batch import Batch
from sundog.actors.core.request import Submit
from sundog.actors.core.routers.prefix_index import Key, PrefixIndex

Role = Literal["both", "prefill", "decode"]
"""Part of a request that a replica computes: all of it (`both`), its prompt, or its answer."""


class Sent:
    """Unfinished request on a replica."""

    __slots__ = (
        "decodes_since",
        "is_moving",
        "is_running",
        "num_output_tokens",
        "num_prefill_tokens",
        "num_tokens",
        "replica",
        "submit",
    )

    def __init__(self, submit: Submit, replica: int, num_tokens: int, num_prefill_tokens: int) -> None:
        self.submit = submit
        self.replica = replica
        self.num_tokens = num_tokens
        self.num_prefill_tokens = num_prefill_tokens
        """Prompt tokens still to compute, as last reported to the Router."""
        self.is_running = False
        self.is_moving = submit.has_remote_kv
        """True from the order to move the request until it runs again, and after its end."""
        self.num_output_tokens = 0
        """Output tokens at its latest admission."""
        self.decodes_since: int | None = None
        """Finished steps of its replica when it began to decode; None while it does not."""


class Tally:
    """Replicas grouped by number of unfinished requests; a group is an integer with one bit per replica."""

    __slots__ = ("_replicas", "fewest", "most")

    def __init__(self, counts: dict[int, int]) -> None:
        self._replicas: dict[int, int] = {}
        for replica, count in counts.items():
            self._replicas[count] = self._replicas.get(count, 0) | 1 << replica
        self.fewest, self.most = min(counts.values(), default=0), max(counts.values(), default=0)

    def idlest(self) -> int:
        """Return the first of the replicas with the fewest requests; there must be one."""
        replicas = self._replicas[self.fewest]
        return (replicas & -replicas).bit_length() - 1

    def change(self, replica: int, before: int, now: int) -> None:
        """Move a replica to the group of its new count. O(1)"""
        rest = self._replicas[before] ^ 1 << replica
        self._replicas[before] = rest
        self._replicas[now] = self._replicas.get(now, 0) | 1 << replica
        if now < self.fewest or (before == self.fewest and not rest):
            self.fewest = now
        if now > self.most or (before == self.most and not rest):
            self.most = now


HEARTBEAT_S = 5.0
"""Seconds after which the coordinator publishes unchanged counts again."""
Counts = tuple[int, int, float]
"""Waiting requests, running requests and used share of the KV cache of a replica."""


class Published:
    """Counts of replicas as vLLM's coordinator of data-parallel ranks publishes them.

    A change is published at once, or `every_s` seconds after the previous publication. An engine reports its
    KV usage when its numbers of requests change. Publications are numbered.
    """

    __slots__ = ("_changed_s", "_current", "_every_s", "_is_changed", "_last_s", "counts", "number")

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._current: list[Counts] = []
        self.counts: list[Counts] = []
        self._is_changed = False
        self._changed_s = 0.0
        self._last_s = -every_s
        self.number = 0

    def add(self) -> None:
        """Add a replica."""
        self._current.append((0, 0, 0.0))
        self.counts.append((0, 0, 0.0))

    def note(self, time_s: float, replica: int, num_waiting: int, num_running: int, kv_usage: float) -> None:
        """Record the counts that a replica reports."""
        self.until(time_s)
        before = self._current[replica]
        if before[0] != num_waiting or before[1] != num_running:
            self._current[replica] = (num_waiting, num_running, kv_usage)
            if not self._is_changed:
                self._is_changed, self._changed_s = True, time_s
            self.until(time_s)

    def until(self, time_s: float) -> None:
        """Publish all counts that are due by a time; unchanged ones are published only at heartbeats."""
        if self._is_changed:
            due_s = max(self._last_s + self._every_s, self._changed_s)
            if time_s < due_s:
                return
            self._last_s, self._is_changed, self.counts = due_s, False, list(self._current)
            self.number += 1
        num_beats = (time_s - self._last_s) // HEARTBEAT_S
        if num_beats >= 1.0:
            self._last_s += HEARTBEAT_S * num_beats
            self.number += 1


class FleetState:
    """State of all replicas by number. `new_index` makes a replica's index of blocks from their number."""

    def __init__(
        self, new_index: Callable[[int], PrefixIndex], seed: int, published: Published | None = None
    ) -> None:
        self.seed = seed
        self.published = published
        """Published counts, for a policy that reads them."""
        self.now_s = 0.0
        self.num_routers, self.router_number = 1, 0
        self.num_held = 0
        """Number of requests without a replica yet."""
        self.num_changes = 0
        """Number of events so far: a request left a replica, an eventful step ended, a replica came or
        went.
        """
        self.up_for: dict[Role, tuple[int, ...]] = {}
        """Replicas that accept requests, in order, by role."""
        self.tallies: dict[Role, Tally] = {}
        """Tally of the requests of these replicas, by role."""
        self.roles: list[Role] = []
        self._down: set[int] = set()
        self._draining: set[int] = set()
        self.block_size = 1
        self.num_blocks: list[int] = []
        self.num_requests: list[int] = []
        self.num_tokens: list[int] = []
        self.num_prefill_tokens: list[int] = []
        self.num_free_blocks: list[int] = []
        self.num_running: list[int] = []
        self.num_waiting: list[int] = []
        self.num_steps: list[int] = []
        """Steps of each replica since it was added, as of the last recorded one."""
        self._told_steps: list[int] = []
        self.step_s: list[float | None] = []
        """Seconds of each replica's last step that computed something."""
        self.indexes: list[PrefixIndex] = []
        self.has_ended: list[bool] = []
        """Whether a replica has ended a request since it came up."""
        self._new_index = new_index
        self._sent: dict[str, Sent] = {}
        self._hits: dict[int, int] = {}
        """Hit blocks by replica, for the request being routed."""

    def add(self, num_blocks: int, block_size: int, role: Role = "both") -> None:
        """Add a replica that is up, with `num_blocks` blocks for requests."""
        self.block_size = block_size
        self.roles.append(role)
        self.num_blocks.append(num_blocks)
        self.indexes.append(self._new_index(num_blocks))
        self.has_ended.append(False)
        self.num_free_blocks.append(num_blocks)
        self.step_s.append(None)
        if self.published is not None:
            self.published.add()
        for counts in (
            self.num_requests,
            self.num_tokens,
            self.num_prefill_tokens,
            self.num_running,
            self.num_waiting,
            self.num_steps,
            self._told_steps,
        ):
            counts.append(0)
        self._look()

    # --- a request -------------------------------------------------------------------------------

    def begin(self, now_s: float) -> None:
        """Begin to route a request."""
        self.now_s = now_s
        self._hits.clear()

    def num_hit_blocks(self, keys: tuple[object, ...] | None, num_prompt_tokens: int, replica: int) -> int:
        """Return the number of the prompt's first blocks, by `keys`, that the replica has.

        At least one token is left to compute.
        """
        if not keys:
            return 0
        found = self._hits.get(replica)
        if found is None:
            usable = (num_prompt_tokens - 1) // self.block_size
            found = self._hits[replica] = min(self.indexes[replica].num_hit_blocks(keys), usable)
        return found

    def send(self, request: Submit, replica: int) -> None:
        """Record that a request was sent to a replica."""
        num_prompt_tokens = request.num_prompt_tokens
        num_tokens = num_prompt_tokens + num_answer_tokens(request)
        to_compute = (
            num_prompt_tokens
            - self.num_hit_blocks(request.block_hashes, num_prompt_tokens, replica) * self.block_size
        )
        if request.has_remote_kv:
            to_compute = 1
        elif request.begun is not None:
            to_compute += request.begun.num_output_tokens
        self._sent[request.request_id] = Sent(request, replica, num_tokens, to_compute)
        self._count(replica, 1)
        self.num_tokens[replica] += num_tokens
        self.num_prefill_tokens[replica] += to_compute
        if request.block_hashes:
            self.indexes[replica].sent(request.block_hashes)

    def forget(self, request_id: str) -> None:
        """Forget a request whose client received its end."""

    def sent(self, request_id: str) -> Sent | None:
        """Return an unfinished request; None if it is unknown."""
        return self._sent.get(request_id)

    def on_replica(self, replica: int) -> list[Sent]:
        """Return the requests of a replica in the order of sending. O(all unfinished requests)"""
        return [sent for sent in self._sent.values() if sent.replica == replica]

    def replica_of(self, request_id: str) -> int | None:
        """Return the replica of an unfinished request."""
        sent = self._sent.get(request_id)
        return None if sent is None else sent.replica

    def end(self, request_id: str) -> None:
        """Remove a finished request; one lost with its replica has already been removed."""
        sent = self._sent.pop(request_id, None)
        if sent is not None:
            self.num_changes += 1
            self._count(sent.replica, -1)
            self.num_tokens[sent.replica] -= sent.num_tokens
            self.num_prefill_tokens[sent.replica] -= sent.num_prefill_tokens
            self.has_ended[sent.replica] = True

    def _count(self, replica: int, change: int) -> None:
        before = self.num_requests[replica]
        self.num_requests[replica] = before + change
        if not (replica in self._down or replica in self._draining):
            self.tallies[self.roles[replica]].change(replica, before, before + change)

    # --- a replica -------------------------------------------------------------------------------

    def lose(self, replica: int) -> tuple[str, ...]:
        """Record the loss of a replica and everything it held; return its requests."""
        lost = tuple(name for name, sent in self._sent.items() if sent.replica == replica)
        for name in lost:
            self.end(name)
        self._down.add(replica)
        self._look()
        self.forget_blocks(replica)
        self.has_ended[replica] = False
        self.num_free_blocks[replica] = self.num_blocks[replica]
        self.num_running[replica] = self.num_waiting[replica] = 0
        self.step_s[replica] = None
        return lost

    def forget_blocks(self, replica: int) -> None:
        """Forget the blocks of a replica whose cache was reset."""
        self.indexes[replica] = self._new_index(self.num_blocks[replica])

    def regain(self, replica: int) -> None:
        """Record that a replica is up again; a drained one still gets no requests."""
        self._down.discard(replica)
        self._look()

    def drain(self, replica: int, is_draining: bool) -> None:
        """Begin or end the drain of a replica."""
        (self._draining.add if is_draining else self._draining.discard)(replica)
        self._look()

    def _look(self) -> None:
        self.num_changes += 1
        away = self._down | self._draining
        for role in set(self.roles):
            up = [number for number, its in enumerate(self.roles) if its == role and number not in away]
            self.up_for[role] = tuple(up)
            self.tallies[role] = Tally({number: self.num_requests[number] for number in up})

    def note(
        self, replica: int, num_free_blocks: int, num_running: int, num_waiting: int, step_s: float | None
    ) -> None:
        """Record a replica's state after a step; `step_s` is None if it computed nothing."""
        self.num_free_blocks[replica] = num_free_blocks
        self.num_running[replica], self.num_waiting[replica] = num_running, num_waiting
        self.num_steps[replica] = self._told_steps[replica]
        if step_s is not None:
            self.step_s[replica] = step_s

    def publish(
        self, time_s: float, replica: int, num_waiting: int, num_running: int, kv_usage: float
    ) -> None:
        """Record the counts that a replica reports, for a policy that reads published counts."""
        if self.published is not None:
            self.published.note(time_s, replica, num_waiting, num_running, kv_usage)

    def change_blocks(self, replica: int, stored: Iterable[Key], removed: Iterable[Key]) -> None:
        """Record the blocks that a replica stored and removed."""
        self.indexes[replica].changed(stored, removed)

    def follow(self, replica: int, batch: Batch, num_steps: int) -> None:
        """Record the prompt tokens that a replica's steps computed, and which requests run. O(what
        changed)
        """
        self._told_steps[replica] += num_steps
        for name in batch.preempted:
            if (sent := self._sent.get(name)) is not None:
                sent.is_running, sent.decodes_since = False, None
        for admission in batch.admitted:
            sent = self._sent.get(admission.request_id)
            if sent is not None:
                sent.is_running, sent.is_moving = True, False
                sent.num_output_tokens = admission.num_tokens - admission.num_prompt_tokens
                self._to_compute(sent, admission.num_tokens - admission.num_computed_tokens)
        for chunk in batch.chunks:
            sent = self._sent.get(chunk.request_id)
            if sent is not None:
                if chunk.samples:
                    sent.decodes_since = self._told_steps[replica] - 1
                rest = max(sent.num_prefill_tokens - chunk.num_tokens, 0)
                self._to_compute(sent, 0 if chunk.samples else rest)

    def _to_compute(self, sent: Sent, num_tokens: int) -> None:
        self.num_prefill_tokens[sent.replica] += num_tokens - sent.num_prefill_tokens
        sent.num_prefill_tokens = num_tokens


class SharedState(FleetState):
    """State of replicas behind several Routers: the whole, and one view per Router.

    A view counts the requests that its Router sent, and their blocks; reports of replicas go to all views.
    Requests go to the Routers in turn.
    """

    def __init__(
        self, new_index: Callable[[int], PrefixIndex], seed: int, stale_s: float, num_routers: int
    ) -> None:
        super().__init__(new_index, seed)
        self.views: list[FleetState] = []
        for number in range(num_routers):
            view = FleetState(new_index, seed, Published(stale_s) if stale_s else None)
            view.num_routers, view.router_number = num_routers, number
            self.views.append(view)
        self._router_of: dict[str, int] = {}
        self._turn = 0

    def router_of(self, names: tuple[str, ...]) -> int:
        """Return the Router of requests that belong together; new ones go to the next in turn."""
        number = self._router_of.get(names[0])
        if number is None:
            number, self._turn = self._turn, (self._turn + 1) % len(self.views)
            for name in names:
                self._router_of[name] = number
        return number

    def add(self, num_blocks: int, block_size: int, role: Role = "both") -> None:
        super().add(num_blocks, block_size, role)
        for view in self.views:
            view.add(num_blocks, block_size, role)

    def begin(self, now_s: float) -> None:
        super().begin(now_s)
        for view in self.views:
            view.begin(now_s)
            view.num_held = self.num_held

    def send(self, request: Submit, replica: int) -> None:
        super().send(request, replica)
        self.views[self.router_of((request.request_id,))].send(request, replica)

    def end(self, request_id: str) -> None:
        super().end(request_id)
        number = self._router_of.get(request_id)
        if number is not None:
            self.views[number].end(request_id)

    def forget(self, request_id: str) -> None:
        self._router_of.pop(request_id, None)

    def lose(self, replica: int) -> tuple[str, ...]:
        lost = super().lose(replica)
        for view in self.views:
            view.lose(replica)
        for name in lost:  # What begins again is a new request to the Routers.
            self.forget(name)
        return lost

    def regain(self, replica: int) -> None:
        super().regain(replica)
        for view in self.views:
            view.regain(replica)

    def drain(self, replica: int, is_draining: bool) -> None:
        super().drain(replica, is_draining)
        for view in self.views:
            view.drain(replica, is_draining)

    def forget_blocks(self, replica: int) -> None:
        super().forget_blocks(replica)
        for view in self.views:
            view.forget_blocks(replica)

    def change_blocks(self, replica: int, stored: Iterable[Key], removed: Iterable[Key]) -> None:
        super().change_blocks(replica, stored, removed)
        for view in self.views:
            view.change_blocks(replica, stored, removed)

    def note(
        self, replica: int, num_free_blocks: int, num_running: int, num_waiting: int, step_s: float | None
    ) -> None:
        super().note(replica, num_free_blocks, num_running, num_waiting, step_s)
        for view in self.views:
            view.note(replica, num_free_blocks, num_running, num_waiting, step_s)

    def publish(
        self, time_s: float, replica: int, num_waiting: int, num_running: int, kv_usage: float
    ) -> None:
        for view in self.views:
            view.publish(time_s, replica, num_waiting, num_running, kv_usage)

    def follow(self, replica: int, batch: Batch, num_steps: int) -> None:
        super().follow(replica, batch, num_steps)
        for view in self.views:
            view.follow(replica, batch, num_steps)


def num_answer_tokens(request: Submit) -> int:
    """Return the predicted length of the answer, else the client's limit, else 0."""
    if request.predicted_tokens is not None:
        return request.predicted_tokens
    return request.sampling.max_tokens or 0
