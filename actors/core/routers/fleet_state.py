"""The Router's record of its replicas: which are up, what each was sent, and its blocks, as far as known.

A plain record with one owner, the Router; router policies look at it through a `Fleet`. Law: `num_requests`
and `num_tokens` of a replica are those of the requests that were sent there and have not ended.
"""

from collections.abc import Callable, Iterable
from typing import Literal

from sundog.actors.core.batch import Batch
from sundog.actors.core.request import Submit
from sundog.actors.core.routers.prefix_index import Key, PrefixIndex

Role = Literal["both", "prefill", "decode"]
"""The part of a request that a replica does: the whole, its prompt, or its answer."""


class Sent:
    """A request that its replica has not ended."""

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
        """Tokens of its prompt that are yet to be computed, as far as the Router has heard."""
        self.is_running = False
        self.is_moving = submit.has_remote_kv
        """True from the order to hand it over until it runs again, and once it has ended."""
        self.num_output_tokens = 0
        """Tokens of its answer when it was admitted last."""
        self.decodes_since: int | None = None
        """The steps that its replica had done when it began to decode; None while it does not."""


class Tally:
    """Replicas by how many unfinished requests each has; a set of them is a number, a bit for each."""

    __slots__ = ("_replicas", "fewest", "most")

    def __init__(self, counts: dict[int, int]) -> None:
        self._replicas: dict[int, int] = {}
        for replica, count in counts.items():
            self._replicas[count] = self._replicas.get(count, 0) | 1 << replica
        self.fewest, self.most = min(counts.values(), default=0), max(counts.values(), default=0)

    def idlest(self) -> int:
        """The first replica of those that have the fewest; there must be one."""
        replicas = self._replicas[self.fewest]
        return (replicas & -replicas).bit_length() - 1

    def change(self, replica: int, before: int, now: int) -> None:
        """A replica has one request more or less than before. O(1)"""
        rest = self._replicas[before] ^ 1 << replica
        self._replicas[before] = rest
        self._replicas[now] = self._replicas.get(now, 0) | 1 << replica
        if now < self.fewest or (before == self.fewest and not rest):
            self.fewest = now
        if now > self.most or (before == self.most and not rest):
            self.most = now


HEARTBEAT_S = 5.0
"""The seconds after which a coordinator publishes again what has not changed."""
Counts = tuple[int, int, float]
"""Waiting and running requests of a replica, and the share of its KV cache that is in use."""


class Published:
    """The counts of replicas as vLLM's coordinator of data-parallel ranks publishes them.

    A change is published at once, or `every_s` seconds after what was published before. An engine reports
    its share of KV when its numbers of requests change. Publications have numbers.
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
        """There is one more replica."""
        self._current.append((0, 0, 0.0))
        self.counts.append((0, 0, 0.0))

    def note(self, time_s: float, replica: int, num_waiting: int, num_running: int, kv_usage: float) -> None:
        """A replica reports its counts."""
        self.until(time_s)
        before = self._current[replica]
        if before[0] != num_waiting or before[1] != num_running:
            self._current[replica] = (num_waiting, num_running, kv_usage)
            if not self._is_changed:
                self._is_changed, self._changed_s = True, time_s
            self.until(time_s)

    def until(self, time_s: float) -> None:
        """Publish what is due by an instant; a state that does not change is published at its heartbeats."""
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
    """All replicas by number. `new_index` makes a replica's index of blocks, given how many it has."""

    def __init__(
        self, new_index: Callable[[int], PrefixIndex], seed: int, published: Published | None = None
    ) -> None:
        self.seed = seed
        self.published = published
        """The counts that a policy reads which takes them as published."""
        self.now_s = 0.0
        self.num_routers, self.router_number = 1, 0
        self.num_held = 0
        """Requests that no replica was chosen for yet."""
        self.num_changes = 0
        """How often a request has left a replica, an eventful step has ended, or a replica come or gone."""
        self.up_for: dict[Role, tuple[int, ...]] = {}
        """Replicas that may be sent requests, in order, by role."""
        self.tallies: dict[Role, Tally] = {}
        """The tally of the requests of these replicas, by role."""
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
        """The steps that each replica has done since it was added, as of the last that was noted."""
        self._told_steps: list[int] = []
        self.step_s: list[float | None] = []
        """The duration, for each replica, of the last step that computed something."""
        self.indexes: list[PrefixIndex] = []
        self.has_ended: list[bool] = []
        """True for a replica that has ended a request since it came up."""
        self._new_index = new_index
        self._sent: dict[str, Sent] = {}
        self._hits: dict[int, int] = {}
        """The blocks that replicas have of the request that is being routed."""

    def add(self, num_blocks: int, block_size: int, role: Role = "both") -> None:
        """Know one more replica, which is up, with `num_blocks` blocks that requests may use."""
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
        """A request is about to be routed."""
        self.now_s = now_s
        self._hits.clear()

    def num_hit_blocks(self, keys: tuple[object, ...] | None, num_prompt_tokens: int, replica: int) -> int:
        """The number of the prompt's first blocks, by their `keys`, that the replica has.

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
        """A request goes to a replica."""
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
        """A request's client has heard of its end."""

    def sent(self, request_id: str) -> Sent | None:
        """A request that has not ended."""
        return self._sent.get(request_id)

    def on_replica(self, replica: int) -> list[Sent]:
        """The requests of a replica, in the order in which they were sent. O(all that are unfinished)"""
        return [sent for sent in self._sent.values() if sent.replica == replica]

    def replica_of(self, request_id: str) -> int | None:
        """The replica of a request that has not ended."""
        sent = self._sent.get(request_id)
        return None if sent is None else sent.replica

    def end(self, request_id: str) -> None:
        """A request is over; one that was lost with its replica is known no more."""
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
        """A replica is down, with all that it held; returns its requests."""
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
        """The cache of a replica is empty."""
        self.indexes[replica] = self._new_index(self.num_blocks[replica])

    def regain(self, replica: int) -> None:
        """A replica is up again; one that is drained is still not sent requests."""
        self._down.discard(replica)
        self._look()

    def drain(self, replica: int, is_draining: bool) -> None:
        """A replica is to be sent nothing new, or requests again."""
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
        """Take in what a replica's step left; `step_s` None if it computed nothing."""
        self.num_free_blocks[replica] = num_free_blocks
        self.num_running[replica], self.num_waiting[replica] = num_running, num_waiting
        self.num_steps[replica] = self._told_steps[replica]
        if step_s is not None:
            self.step_s[replica] = step_s

    def publish(
        self, time_s: float, replica: int, num_waiting: int, num_running: int, kv_usage: float
    ) -> None:
        """Take in the counts that a replica reports, for a policy that reads them as published."""
        if self.published is not None:
            self.published.note(time_s, replica, num_waiting, num_running, kv_usage)

    def change_blocks(self, replica: int, stored: Iterable[Key], removed: Iterable[Key]) -> None:
        """Take in which blocks a replica has stored and removed."""
        self.indexes[replica].changed(stored, removed)

    def follow(self, replica: int, batch: Batch, num_steps: int) -> None:
        """Take in what a replica's steps computed of prompts, and which requests run. O(what changed)"""
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
    """Replicas behind several Routers: the whole, and for each Router a view of its own.

    A view counts the requests that its Router has sent, and knows their blocks; what replicas report, and
    which of them are up, all views hear. Requests go to the Routers in turn.
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
        """The Router of each unfinished request."""
        self._turn = 0

    def router_of(self, names: tuple[str, ...]) -> int:
        """Return the Router of requests that go together; the next in turn takes new ones."""
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
    """The length of the answer as far as it is said: a prediction, else the client's limit, else 0."""
    if request.predicted_tokens is not None:
        return request.predicted_tokens
    return request.sampling.max_tokens or 0
