"""Interface of router policies: the choice of a replica for each request.

Law: a router policy is a frozen object of pure functions. It reads the request and a `Fleet` of facts that a
Router has in every world. It is called once per request, and once for all choices of one prompt.
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
    """A request on its replica, as of that replica's last eventful step.

    Example:
        >>> import sundog
        >>> submit = sundog.Submit("r1", arrival_s=0.0, num_prompt_tokens=12, max_tokens=4)
        >>> sundog.Unfinished(submit, 0, True, num_prefill_tokens=0, num_output_tokens=3).request_id
        'r1'
    """

    request: Submit
    replica: int
    is_running: bool
    num_prefill_tokens: int
    """Number of tokens to compute before the request samples its next one."""
    num_output_tokens: int

    @property
    def request_id(self) -> str:
        return self.request.request_id


class Fleet:
    """The replicas of a Router, read-only except for `memory`.

    Replicas have numbers from 0. Router policies receive a Fleet as an argument.

    Example:
        >>> import sundog
        >>> class FewestTokens(sundog.Router):
        ...     def score(self, request, replica, fleet):
        ...         return -fleet.num_tokens(replica)
        >>> run = sundog.replay(
        ...     "traces/chat-poisson-2rps-5min.jsonl.gz",
        ...     gpu="h100", replicas=2, limit=20, router=FewestTokens,
        ... )
        >>> run.figures["num_finished"]
        20
    """

    __slots__ = ("_state", "memory", "role")

    def __init__(self, state: FleetState, memory: Any = None, role: Role = "both") -> None:
        self._state = state
        self.role = role
        """Part of the request to choose a replica for: `both`, `prefill` or `decode`."""
        self.memory = memory
        """Memory of the policy (`RouterPolicy.new_memory`), of a type that its author chooses."""

    @property
    def now_s(self) -> float:
        """Time at which the request came to the Router, in seconds on the run's clock."""
        return self._state.now_s

    @property
    def up(self) -> tuple[int, ...]:
        """Replicas that may be chosen, in order; at least one."""
        return self._state.up_for[self.role]

    @property
    def num_replicas(self) -> int:
        """Number of replicas, including those that are down."""
        return len(self._state.num_requests)

    @property
    def num_routers(self) -> int:
        """Number of Routers that share these replicas; each counts only its own requests."""
        return self._state.num_routers

    @property
    def router_number(self) -> int:
        """Number of the Router that this view belongs to, from 0."""
        return self._state.router_number

    @property
    def num_held(self) -> int:
        """Number of requests that `choose` has held back, including one that it is called for again."""
        return self._state.num_held

    @property
    def idlest(self) -> int:
        """First of the replicas in `up` with the fewest unfinished requests. O(1)"""
        return self._state.tallies[self.role].idlest()

    def num_requests(self, replica: int) -> int:
        """Return how many requests were sent to a replica and have not ended."""
        return self._state.num_requests[replica]

    def num_tokens(self, replica: int) -> int:
        """Return the tokens of a replica's unfinished requests: prompts, and answers as predicted or else as
        allowed.
        """
        return self._state.num_tokens[replica]

    def num_prefill_tokens(self, replica: int) -> int:
        """Return how many prompt tokens of a replica's requests are not computed yet.

        The number is exact for policies with `follows_steps`. For others a prompt counts until its request
        ends.
        """
        return self._state.num_prefill_tokens[replica]

    def num_free_blocks(self, replica: int) -> int:
        """Return a replica's free KV blocks after its last eventful step; all its blocks without
        `follows_steps`.
        """
        return self._state.num_free_blocks[replica]

    def num_running(self, replica: int) -> int:
        """Return a replica's running requests after its last eventful step; 0 without `follows_steps`."""
        return self._state.num_running[replica]

    def num_waiting(self, replica: int) -> int:
        """Return a replica's waiting requests after its last eventful step; 0 without `follows_steps`."""
        return self._state.num_waiting[replica]

    def step_s(self, replica: int) -> float | None:
        """Return the seconds of a replica's last eventful step; None before the first, or without
        `follows_steps`.
        """
        return self._state.step_s[replica]

    def published(self, replica: int) -> Counts:
        """Return what a replica last published.

        Args:
            replica: Number of the replica.

        Returns:
            Waiting requests, running requests, and the used share of KV blocks: as published every `stale_s`
            seconds, or as of the last eventful step if `stale_s` is 0.
        """
        state = self._state
        if state.published is not None:
            state.published.until(state.now_s)
            return state.published.counts[replica]
        usage = 1 - state.num_free_blocks[replica] / state.num_blocks[replica]
        return state.num_waiting[replica], state.num_running[replica], usage

    @property
    def num_published(self) -> int:
        """Number of publications so far; 0 for a policy without `stale_s`."""
        state = self._state
        if state.published is None:
            return 0
        state.published.until(state.now_s)
        return state.published.number

    def num_blocks(self, replica: int) -> int:
        """Return the number of KV blocks of a replica."""
        return self._state.num_blocks[replica]

    def requests(self, replica: int) -> list[Unfinished]:
        """Return the requests of a replica that can be moved, in order of arrival.

        A request whose prompt is being computed moves afterwards. O(unfinished requests of all replicas)

        Args:
            replica: Number of the replica.

        Returns:
            Its requests, without those that are moving already.
        """
        state = self._state
        num_steps = state.num_steps[replica]
        return [
            Unfinished(
                cast(Submit, ReadOnlySubmit(sent.submit)),
                replica,
                is_running=sent.is_running,
                num_prefill_tokens=sent.num_prefill_tokens,
                num_output_tokens=sent.num_output_tokens
                + (0 if sent.decodes_since is None else max(num_steps - sent.decodes_since, 0)),
            )
            for sent in state.on_replica(replica)
            if not sent.is_moving
        ]

    def can_move(self, request_id: str, replica: int) -> bool:
        """Return whether a request is on this replica and not moving."""
        sent = self._state.sent(request_id)
        return sent is not None and sent.replica == replica and not sent.is_moving

    def num_hit_tokens(self, request: Submit, replica: int) -> int:
        """Return how many tokens of the prompt are in a replica's prefix cache, by the policy's `index`.

        O(log blocks), once for each replica and request.

        Args:
            request: The request that is routed.
            replica: Number of the replica.

        Returns:
            Number of tokens, a multiple of the block size.
        """
        state = self._state
        return (
            state.num_hit_blocks(request.block_hashes, request.num_prompt_tokens, replica) * state.block_size
        )

    def random(self, *key: Submit | str | int) -> float:
        """Return a number in [0, 1) that depends only on the run's seed and this key.

        Args:
            *key: Requests, texts or numbers.

        Returns:
            The same number for the same key, however often it is called.
        """
        names = [part if isinstance(part, str | int) else part.request_id for part in key]
        return drawn(self._state.seed, ["router", *names])


class RouterPolicy:
    """Base of router policies: the replica of each request. `import sundog` calls it `Router`.

    A subclass overrides `score` or `choose`. By default the replica with the fewest unfinished requests is
    taken.

    Example:
        >>> import sundog
        >>> class MostHits(sundog.Router):
        ...     index = "own"
        ...     def score(self, request, replica, fleet):
        ...         return fleet.num_hit_tokens(request, replica)
        >>> run = sundog.replay(
        ...     "traces/chat-poisson-2rps-5min.jsonl.gz",
        ...     gpu="h100", replicas=2, limit=20, router=MostHits,
        ... )
        >>> run.figures["num_finished"]
        20
    """

    index: IndexName = "none"
    """Source of `Fleet.num_hit_tokens`: `none`, the prompts that this Router sent (`own`), or the `events` of
    the replicas' caches.
    """
    follows_steps: ClassVar[bool] = False
    """Whether the Router receives the output of each step.

    `Fleet.num_prefill_tokens` then follows what steps compute. `num_free_blocks`, `num_running`,
    `num_waiting` and `step_s` are as of the last eventful step, which is one that did more than decode. A
    policy that defines `moves` receives steps as well.
    """
    stale_s: ClassVar[float] = 0.0
    """Seconds between two publications of `Fleet.published`; 0 makes it follow every eventful step."""
    moves_every_s: ClassVar[float] = 1.0
    """Least seconds between two calls of `moves`."""

    def score(self, request: Submit, replica: int, fleet: Fleet) -> float:
        """Return the score of a replica for a request: the highest score is chosen.

        Of equal scores the replica with the fewest unfinished requests is chosen, and then the first.

        Args:
            request: The request that is routed.
            replica: Number of the replica, one of `fleet.up`.
            fleet: The replicas; `fleet.memory` must not be changed here.

        Returns:
            Any finite number.
        """
        return 0.0

    def choose(self, request: Submit, fleet: Fleet) -> int | None:
        """Choose the replica of a request. It may change `fleet.memory`.

        Args:
            request: The request that is routed.
            fleet: The replicas.

        Returns:
            One of `fleet.up`; None to hold the request. `choose` is then called again for all held requests,
            in order, when a request leaves a replica, a replica comes up or, with `follows_steps`, an
            eventful step ends. None is an error while no replica has a request, because none of this would
            happen, and for the role `decode`. Requests whose replicas are all drained or down wait without a
            call.
        """
        return max(
            fleet.up, key=lambda replica: (self.score(request, replica, fleet), -fleet.num_requests(replica))
        )

    def refuse(self, request: Submit, fleet: Fleet) -> Refusal | None:
        """Decide whether to refuse a request before it is routed. Called once per prompt.

        Args:
            request: The new request.
            fleet: The replicas.

        Returns:
            The refusal; None to route the request.
        """
        return None

    def moves(self, fleet: Fleet) -> Iterable[tuple[Unfinished, int]]:
        """Return requests that should continue on another replica.

        It is called after eventful steps, at most every `moves_every_s` seconds, and costs nothing if it is
        not defined.

        Args:
            fleet: The replicas.

        Returns:
            Pairs of a request and its new replica.
        """
        return ()

    def new_memory(self) -> object:
        """Return the policy's memory of one run, which is `fleet.memory` in all other methods.

        Returns:
            Any object; None if the policy needs no memory.
        """
        return None
