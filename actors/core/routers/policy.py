"""The interface of router policies: which replica a request goes to, and the facts it is chosen by.

Law: a router policy is a frozen object of pure functions. It sees the request and a `Fleet`, facts that a
Router knows in every world, and is asked once for each request (once for all choices of one prompt).
"""

from collections.abc import Iterable
from typing import Any, ClassVar, Literal, NamedTuple, cast

from sundog.actors.core.chance import drawn
from sundog.actors.core.policies.shown import ReadOnlySubmit
from sundog.actors.core.queue.policy import Refusal
from sundog.actors.core.request import Submit
from sundog.actors.core.routers.fleet_state import Counts, FleetState, Role

IndexName = Literal["none", "own", "events"]
INDEXES = ("none", "own", "events")


class Unfinished(NamedTuple):
    """A request on its replica, as of that replica's last eventful step."""

    request: Submit
    replica: int
    is_running: bool
    num_prefill_tokens: int
    """Tokens that are yet to be computed before it samples one."""
    num_output_tokens: int

    @property
    def request_id(self) -> str:
        return self.request.request_id


class Fleet:
    """A read-only window on a Router's replicas, which have numbers; `memory` alone may change."""

    __slots__ = ("_state", "memory", "role")

    def __init__(self, state: FleetState, memory: Any = None, role: Role = "both") -> None:
        self._state = state
        self.role = role
        """The part of the request that a replica is chosen for: `both`, `prefill` or `decode`."""
        self.memory = memory
        """The policy's memory (`RouterPolicy.new_memory`), of a type that only its author knows."""

    @property
    def now_s(self) -> float:
        """The time at which the request came to the Router, on the run's clock."""
        return self._state.now_s

    @property
    def up(self) -> tuple[int, ...]:
        """The replicas that may be chosen, in order; at least one."""
        return self._state.up_for[self.role]

    @property
    def num_replicas(self) -> int:
        """The number of replicas, those that are down included."""
        return len(self._state.num_requests)

    @property
    def num_routers(self) -> int:
        """Routers that share these replicas; each has a view of its own, which this is."""
        return self._state.num_routers

    @property
    def router_number(self) -> int:
        """The number of the Router whose view this is, from 0 on."""
        return self._state.router_number

    @property
    def num_held(self) -> int:
        """Requests that `choose` holds; one that it is asked about again is among them."""
        return self._state.num_held

    @property
    def idlest(self) -> int:
        """The first of those in `up` that have the fewest unfinished requests. O(1)"""
        return self._state.tallies[self.role].idlest()

    def num_requests(self, replica: int) -> int:
        """Requests that were sent there and have not ended."""
        return self._state.num_requests[replica]

    def num_tokens(self, replica: int) -> int:
        """The number of tokens of these requests: prompts, and answers as predicted or else allowed."""
        return self._state.num_tokens[replica]

    def num_prefill_tokens(self, replica: int) -> int:
        """Tokens of their prompts that are yet to be computed; exact for policies that `follows_steps`.

        For others a prompt counts as long as its request has not ended.
        """
        return self._state.num_prefill_tokens[replica]

    def num_free_blocks(self, replica: int) -> int:
        """KV blocks free after its last eventful step; all of them, unless the policy `follows_steps`."""
        return self._state.num_free_blocks[replica]

    def num_running(self, replica: int) -> int:
        """Requests that ran after its last eventful step; 0, unless the policy `follows_steps`."""
        return self._state.num_running[replica]

    def num_waiting(self, replica: int) -> int:
        """Requests that waited after its last eventful step; 0, unless the policy `follows_steps`."""
        return self._state.num_waiting[replica]

    def step_s(self, replica: int) -> float | None:
        """Seconds of its last eventful step; None before the first, and unless the policy `follows_steps`."""
        return self._state.step_s[replica]

    def published(self, replica: int) -> Counts:
        """Waiting and running requests, and the share of KV in use, as published for a `stale_s` policy.

        For others as of the replica's last eventful step.
        """
        state = self._state
        if state.published is not None:
            state.published.until(state.now_s)
            return state.published.counts[replica]
        usage = 1 - state.num_free_blocks[replica] / state.num_blocks[replica]
        return state.num_waiting[replica], state.num_running[replica], usage

    @property
    def num_published(self) -> int:
        """How often counts have been published; 0 for a policy without `stale_s`."""
        state = self._state
        if state.published is None:
            return 0
        state.published.until(state.now_s)
        return state.published.number

    def num_blocks(self, replica: int) -> int:
        """KV blocks that the replica has."""
        return self._state.num_blocks[replica]

    def requests(self, replica: int) -> list[Unfinished]:
        """The replica's requests that can be moved, in order of arrival, without those that move already.

        A request whose prompt is being computed moves when it is. O(unfinished requests of all replicas)
        """
        state = self._state
        num_steps = state.num_steps[replica]
        return [
            Unfinished(
                cast(Submit, ReadOnlySubmit(sent.submit)),
                replica,
                sent.is_running,
                sent.num_prefill_tokens,
                sent.num_output_tokens
                + (0 if sent.decodes_since is None else max(num_steps - sent.decodes_since, 0)),
            )
            for sent in state.on_replica(replica)
            if not sent.is_moving
        ]

    def can_move(self, request_id: str, replica: int) -> bool:
        """True if a request is on this replica, and not on its way."""
        sent = self._state.sent(request_id)
        return sent is not None and sent.replica == replica and not sent.is_moving

    def num_hit_tokens(self, request: Submit, replica: int) -> int:
        """Tokens of the prompt that the replica has in its prefix cache, by the policy's `index`.

        O(log blocks) once for each replica and request.
        """
        state = self._state
        return (
            state.num_hit_blocks(request.block_hashes, request.num_prompt_tokens, replica) * state.block_size
        )

    def random(self, *key: Submit | str | int) -> float:
        """A number from 0 to 1, 1 excluded, that follows from the run's seed and this key alone."""
        names = [part if isinstance(part, str | int) else part.request_id for part in key]
        return drawn(self._state.seed, ["router", *names])


class RouterPolicy:
    """A subclass states what it needs and inherits the rest, which is to take the least busy replica."""

    index: IndexName = "none"
    """The source of `Fleet.num_hit_tokens`: the prompts that the Router sent (`own`), or the `events`
    in which replicas say what they store and remove."""
    follows_steps: ClassVar[bool] = False
    """True if the Router is told of each step: `Fleet.num_prefill_tokens` follows what they compute, and
    `num_free_blocks`, `num_running`, `num_waiting` and `step_s` what the last eventful one left: one that did
    more than decode on. One that `moves` requests is told, too."""
    stale_s: ClassVar[float] = 0.0
    """The seconds between two publications of what `Fleet.published` says; 0: it is as of the last step."""
    moves_every_s: ClassVar[float] = 1.0
    """The seconds from one question for `moves` to the next, at least."""

    def score(self, request: Submit, replica: int, fleet: Fleet) -> float:
        """The worth of a replica for the request: the highest score is chosen.

        Of equals the one with the fewest unfinished requests, and then the first.
        """
        return 0.0

    def choose(self, request: Submit, fleet: Fleet) -> int | None:
        """The replica, one of `fleet.up`. It may change `fleet.memory`, as `score` must not.

        None holds the request: it is asked again about all that are held, in their order, whenever a request
        has left a replica, a replica is up again or, if it `follows_steps`, an eventful step has ended. While
        no replica has a request nothing of this would come, and None is an error; so it is where `fleet.role`
        is `decode`. Requests whose replicas are all drained or down wait for one without a question.
        """
        return max(
            fleet.up, key=lambda replica: (self.score(request, replica, fleet), -fleet.num_requests(replica))
        )

    def refuse(self, request: Submit, fleet: Fleet) -> Refusal | None:
        """Turn a request away before it is routed; None: it is routed. Asked once a prompt."""
        return None

    def moves(self, fleet: Fleet) -> Iterable[tuple[Unfinished, int]]:
        """The requests that are to go on elsewhere, each with the replica where.

        Asked after eventful steps, every `moves_every_s` seconds at most; free where it is not defined.
        """
        return ()

    def new_memory(self) -> object:
        """The policy's memory, made once for each run: `fleet.memory` everywhere else."""
        return None
