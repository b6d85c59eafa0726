"""Router: sends each request to a replica, and its abort after it.

The decision is its policy's (`actors/core/routers/`), based on the reports of its replicas.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf

from sundog.actors.core.params.sampling import Adapter
from sundog.actors.core.policies.guard import PolicyError
from sundog.actors.core.queue.policy import defines
from sundog.actors.core.routers import Fleet, RouterPolicy
from sundog.actors.core.routers.fleet_state import FleetState, Published, Role, SharedState
from sundog.actors.core.routers.guard import GuardedRouter, guarded_router
from sundog.actors.core.routers.prefix_index import new_index
from sundog.actors.kernel.actor import Actor, ActorDied, Handled, Ref, Reply, Tap, answer
from sundog.actors.kernel.clock import Event
from sundog.actors.messages import (
    Abort,
    CeaseFetch,
    ChangeAdapters,
    Done,
    Drain,
    EngineDown,
    EngineRefs,
    EngineUp,
    FetchKv,
    Freeze,
    PolicyFailed,
    Refused,
    Released,
    ResetPrefixCache,
    Routed,
    RouterFailed,
    Siblings,
    StepOutput,
    Submit,
    Undelivered,
)
from sundog.actors.router.every_engine import ask_all
from sundog.actors.router.handovers import Handovers, HoldIsOver

log = logging.getLogger("sundog")

Work = Submit | Siblings | Released | Abort
News = EngineDown | EngineUp | StepOutput | PolicyFailed
RouterMessage = Work | ResetPrefixCache | Freeze | ChangeAdapters | Drain | News | HoldIsOver


class Router(Actor[RouterMessage]):
    """Actor that sends requests to running replicas.

    After a crash it reports the lost requests, including those sent before it learned of the crash. If a
    user's policy fails, the `fallback` takes over; with None the Router crashes. The `links` copy keys and
    values between prefilling and decoding replicas if `hands_over` is set, and for requests that the policy
    moves.
    """

    def __init__(
        self,
        name: str,
        policy: RouterPolicy,
        *,
        seed: int = 0,
        fallback: RouterPolicy | None = None,
        listeners: Sequence[Ref[Routed]] = (),
        links: Ref[FetchKv | CeaseFetch] | None = None,
        hands_over: bool = False,
        num_routers: int = 1,
        tap: Tap | None = None,
    ) -> None:
        super().__init__(name, tap=tap)
        self._policy = guarded_router(policy)
        stale_s = self._policy.stale_s
        published, self._shared = Published(stale_s) if stale_s else None, None
        self._state = FleetState(new_index(policy.index), seed, published)
        if num_routers > 1:
            self._state = self._shared = SharedState(new_index(policy.index), seed, stale_s, num_routers)
        self._hands_over = hands_over
        self._first: Role = "prefill" if hands_over else "both"
        """Role of a request's first replica."""
        self._last: Role = "decode" if hands_over else "both"
        """Role of the replicas between which it may be moved."""
        self._fleets: list[dict[Role, Fleet]] = []
        """Argument of the policy, by the number of the Router and the role of the replica."""
        for view in [self._state] if self._shared is None else self._shared.views:
            roles = dict.fromkeys((self._first, self._last))
            self._fleets.append({role: Fleet(view, self._policy.new_memory(), role) for role in roles})
        self._held: list[tuple[Role, tuple[Submit, ...]]] = []
        """Requests without a replica, in order of arrival, each with the role it needs."""
        self._num_changes = 0
        """Count of fleet changes when held requests were last placed."""
        self._dead: set[int] = set()
        """Replicas that will not be up again."""
        self._refuses = defines(self._policy, "refuse", RouterPolicy)
        self._engines: list[EngineRefs | None] = []
        """Addresses of each engine; None for a replica that is down."""
        self._moves = defines(self._policy, "moves", RouterPolicy)
        self._follows = self._policy.follows_steps or self._policy.index == "events"
        self._notes_steps = self._follows or self._moves or isinstance(self._policy, GuardedRouter)
        """Whether to record what steps do: the policy may read it."""
        self._moves_asked_s = -inf
        """Time of the last call of the policy's `moves`: once per instant at most."""
        self._handovers = (
            Handovers(self, self._state, self._engines, links) if hands_over or self._moves else None
        )
        self._has_choice = False
        """Whether to call the policy: with one replica only a user's, which may count calls."""
        self._drained: dict[int, list[Reply[Done | Refused]]] = defaultdict(list)
        """Replies to drains, by replica, that wait for its last request to end."""
        self._freeze: Freeze | None = None
        """Last order to freeze or resume, which is repeated to an engine that comes back."""
        self._adapters: dict[Adapter, None] = {}
        """Adapters loaded at run time, which an engine that comes back loads, too."""
        self._listeners = listeners
        self._async_llm: Ref[EngineDown | EngineUp | Undelivered | RouterFailed] | None = None
        if isinstance(self._policy, GuardedRouter):
            self._policy.fallback = fallback
            self._policy.on_failure.append(self._policy_failed)
            if fallback is not None:
                self._policy.replace_when_slow(time.perf_counter)

    @property
    def follows_steps(self) -> bool:
        """Whether the Router needs every StepOutput."""
        return self._follows or self._handovers is not None

    def connect(self, engine: EngineRefs, role: Role = "both") -> None:
        """Add a replica, before the Router starts; the Router closes the replica's addresses when it ends."""
        self._state.add(engine.capacity.num_blocks - 1, engine.capacity.block_size, role)
        self._engines.append(engine)
        self._has_choice = len(self._engines) > 1 or isinstance(self._policy, GuardedRouter)

    def report_to(self, async_llm: Ref[EngineDown | EngineUp | Undelivered | RouterFailed]) -> None:
        """Set the receiver of reports on lost and returned replicas, before the Router starts."""
        self._async_llm = async_llm

    def has_served(self, replica: int) -> bool:
        """Return whether a replica has ended a request since it came up. A synchronous call."""
        return self._state.has_ended[replica]

    def handle(self, message: RouterMessage) -> Handled:
        answered: Handled = None
        match message:
            case StepOutput():
                self._follow(message)
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
            case PolicyFailed():
                pass  # A replica's, that goes on with another.
            case ResetPrefixCache() | Freeze() | ChangeAdapters() | Drain():
                answered = self._ordered(message)
            case HoldIsOver():
                assert self._handovers is not None
                self._handovers.hold_is_over(message)
            case _:
                self.unknown(message)
        if self._held or self._drained:
            self.look_again()
        return answered

    def _ordered(self, order: ResetPrefixCache | Freeze | ChangeAdapters | Drain) -> Handled:
        match order:
            case ResetPrefixCache():
                one, engines = order.replica, self._engines
                if one is not None:
                    engines = engines[one : one + 1]
                    if order.begins_anew:
                        self._state.forget_blocks(one)
                return answer(order, ask_all(engines, lambda engine: engine.kv_cache_manager.request(order)))
            case Freeze():
                self._freeze = order
                return answer(order, ask_all(self._engines, lambda engine: engine.scheduler.request(order)))
            case ChangeAdapters():
                self._adapters.update(dict.fromkeys(order.loaded))
                for adapter in order.unloaded:
                    self._adapters.pop(adapter, None)
                return answer(order, ask_all(self._engines, lambda engine: engine.scheduler.request(order)))
            case Drain():
                return answer(order, self._drain(order))

    def look_again(self) -> None:
        """Place held requests, and answer drains, if the fleet has changed."""
        if self._num_changes != self._state.num_changes:
            self._num_changes = self._state.num_changes
            if self._drained:
                self._tell_drained()
            if self._held:
                self._place_held()

    async def closed(self) -> None:
        for engine in self._engines:
            if engine is not None:
                engine.close()
        if self._handovers is not None:
            self._handovers.close()

    def _submit(self, submits: tuple[Submit, ...]) -> None:
        state = self._state
        up = state.up_for[self._first]
        if not up:
            return self._report(Undelivered(tuple([submit.request_id for submit in submits])))
        if self._hands_over and self._handovers is not None:
            submits = tuple([self._handovers.first_leg(submit) for submit in submits])
        state.begin((self._clock or self.clock).now_s())
        refusal = None
        if self._refuses:
            refusal = self._policy.refuse(submits[0], self._fleet(submits, self._first))
        if refusal is not None:  # an engine ends it, and so all who hear of ends hear of this one
            reason, again_s = refusal.reason, refusal.retry_after_s
            submits = tuple([replace(submit, refused=reason, retry_after_s=again_s) for submit in submits])
            self._send(submits, up[0])
        elif not self._place(submits, self._first):
            self._hold(submits, self._first)

    def _fleet(self, submits: tuple[Submit, ...], role: Role) -> Fleet:
        number = 0
        if self._shared is not None:
            number = self._shared.router_of(tuple([each.request_id for each in submits]))
        return self._fleets[number][role]

    def _place(self, submits: tuple[Submit, ...], role: Role) -> bool:
        """Send requests to the replica that the policy chooses; False if it holds them."""
        replica: int | None = self._state.up_for[role][0]
        if self._has_choice:
            replica = self._policy.choose(submits[0], self._fleet(submits, role))
        if replica is not None:
            self._send(submits, replica)
        return replica is not None

    def _hold(self, submits: tuple[Submit, ...], role: Role) -> None:
        if not self._held:
            self._num_changes = self._state.num_changes
        self._held.append((role, submits))
        self._state.num_held += len(submits)

    def _place_held(self) -> None:
        """Call the policy again for held requests, one after the other. O(held)

        Requests whose replicas are all drained or down wait for one to come back, if one can.
        """
        held, self._held = self._held, []
        for role, submits in held:
            self._state.begin((self._clock or self.clock).now_s())
            if self._state.up_for[role] and self._place(submits, role):
                self._state.num_held -= len(submits)
            elif self._may_serve(role):
                self._held.append((role, submits))
            else:
                self._state.num_held -= len(submits)
                self._report(Undelivered(tuple([submit.request_id for submit in submits])))

    def _may_serve(self, role: Role) -> bool:
        roles = self._state.roles
        return any([its == role and replica not in self._dead for replica, its in enumerate(roles)])

    def _send(self, submits: tuple[Submit, ...], replica: int) -> None:
        state = self._state
        engine = self._engines[replica]
        assert engine is not None, "a replica that is up has an engine"
        if self._listeners and len(self._engines) > 1:
            self._tell_choice(submits, replica)
        for submit in submits:
            state.send(submit, replica)
            try:
                engine.scheduler.tell(submit)
            except ActorDied:  # its end is on its way here, and takes the request along
                continue

    def _tell_choice(self, submits: tuple[Submit, ...], replica: int) -> None:
        state = self._state
        hit_blocks, most_other = None, None
        up = state.up_for[self._first]
        if self._policy.index != "none":
            keys, num_tokens = submits[0].block_hashes, submits[0].num_prompt_tokens
            hit_blocks = state.num_hit_blocks(keys, num_tokens, replica)
            others = [state.num_hit_blocks(keys, num_tokens, other) for other in up if other != replica]
            most_other = max(others, default=0)
        names = tuple([submit.request_id for submit in submits])
        chosen, tally = state.num_requests[replica], state.tallies[self._first]
        routed = Routed(
            names,
            replica,
            num_up=len(up),
            num_requests=chosen,
            fewest_requests=tally.fewest,
            most_requests=tally.most,
            num_hit_blocks=hit_blocks,
            most_other_hit_blocks=most_other,
        )
        for listener in self._listeners:
            listener.tell(routed)

    def choose_decoding(self, submit: Submit) -> int | None:
        """Return the replica that is to decode a prefilled request; None while none is up."""
        self._state.begin((self._clock or self.clock).now_s())
        if not self._state.up_for["decode"]:
            return None
        return self._policy.choose(submit, self._fleet((submit,), "decode"))

    def go_on(self, submit: Submit, replica: int | None) -> None:
        """Send a request with its tokens to a replica, or to one that the policy chooses if that is down."""
        self._state.begin((self._clock or self.clock).now_s())
        if replica is not None and self._engines[replica] is not None:
            self._send((submit,), replica)
        elif not self._may_serve(self._last):
            self._report(Undelivered((submit.request_id,)))
        elif not (self._state.up_for[self._last] and self._place((submit,), self._last)):
            self._hold((submit,), self._last)

    def _move(self) -> None:
        assert self._handovers is not None
        fleet, now_s, asked_s = self._fleets[0][self._last], self.clock.now_s(), self._moves_asked_s
        if now_s <= asked_s or now_s < asked_s + self._policy.moves_every_s or not fleet.up:
            return
        self._moves_asked_s = now_s
        self._state.begin(now_s)
        for unfinished, target in self._policy.moves(fleet):
            self._handovers.move(unfinished.request_id, target)

    def undelivered(self, undelivered: Undelivered) -> None:
        """Report requests that no engine has."""
        self._report(undelivered)

    def hold_until(self, hold: HoldIsOver, seconds: float) -> None:
        """End the hold of a request's blocks after these seconds."""
        self.schedule(self.clock.now_s() + seconds, Event.TIMEOUT, hold)

    def _follow(self, output: StepOutput) -> None:
        batch = output.batch
        if self._notes_steps:
            self._state.follow(output.replica, batch, len(output.end_times_s))
        if self._handovers is not None and output.finished:
            self._handovers.follow(output.finished)
        # Steps that only decode on are told one by one or many at once: what they leave must not matter.
        if batch.admitted or batch.chunks or batch.preempted or output.finished:
            if self._notes_steps:
                self._note(output)
            self._state.num_changes += 1
            if self._moves:
                self._move()
        if (events := output.kv_events) is not None:
            self._state.change_blocks(output.replica, events.stored, events.removed)

    def _note(self, output: StepOutput) -> None:
        """Record a replica's state after a step that did more than decode on."""
        replica, ends, step_s = output.replica, output.end_times_s, None
        if output.batch.num_tokens:
            step_s = ends[-1] - (ends[-2] if len(ends) > 1 else output.start_s)
        num_free, num_running, num_waiting = output.num_free_blocks, output.num_running, output.num_waiting
        self._state.note(replica, num_free, num_running, num_waiting=num_waiting, step_s=step_s)
        if self._policy.stale_s:
            usage = 1 - num_free / self._state.num_blocks[replica]
            self._state.publish(self.clock.now_s(), replica, num_waiting, num_running, kv_usage=usage)

    def _released(self, released: Released) -> None:
        for name in released.request_ids:
            self._state.end(name)
            if self._shared is not None:
                self._shared.forget(name)

    def _abort(self, abort: Abort) -> None:
        by_replica: dict[int, list[str]] = defaultdict(list)
        for name in abort.request_ids:
            if self._handovers is not None and self._handovers.abort(name):
                continue
            replica = self._state.replica_of(name)
            if replica is not None:
                by_replica[replica].append(name)
            elif self._held:
                self._abort_held(name)
        for replica, names in by_replica.items():
            engine = self._engines[replica]
            assert engine is not None, "a replica that is down has no requests"
            with suppress(ActorDied):
                engine.scheduler.tell(Abort(tuple(names), abort.reason))

    def _abort_held(self, name: str) -> None:
        kept = [(role, tuple([s for s in each if s.request_id != name])) for role, each in self._held]
        if kept != self._held:
            self._held = [(role, each) for role, each in kept if each]
            self._state.num_held -= 1
            self._report(Undelivered((name,)))

    def _drain(self, drain: Drain) -> Done | Reply[Done | Refused]:
        self._state.drain(drain.replica, drain.is_draining)
        if not drain.is_draining:
            for waiting in self._drained.pop(drain.replica, ()):
                waiting.set(Refused("the replica is sent requests again"))
            return Done()
        reply: Reply[Done | Refused] = Reply()
        self._drained[drain.replica].append(reply)
        return reply

    def _tell_drained(self) -> None:
        for replica in [each for each in self._drained if not self._state.num_requests[each]]:
            if self._handovers is None or not self._handovers.reads_from(replica):
                for reply in self._drained.pop(replica):
                    reply.set(Done())

    def _engine_down(self, down: EngineDown) -> None:
        self._engines[down.replica] = None
        if self._policy.stale_s:
            self._state.publish(self.clock.now_s(), down.replica, 0, 0, 0.0)
        lost = self._state.lose(down.replica)
        if self._handovers is not None:
            lost = self._handovers.engine_down(down.replica, lost)
        if down.retry_after_s is None:
            self._dead.add(down.replica)
        names = frozenset(lost)
        in_batch = tuple([name for name in down.in_batch if name in names])
        self._report(replace(down, request_ids=lost, in_batch=in_batch))

    def _engine_up(self, up: EngineUp) -> None:
        self._engines[up.replica] = up.engine
        self._state.regain(up.replica)
        if self._freeze is not None and self._freeze.is_frozen:
            ask_all([up.engine], lambda engine: engine.scheduler.request(Freeze()))
        if self._adapters:
            change = ChangeAdapters(tuple(self._adapters))
            ask_all([up.engine], lambda engine: engine.scheduler.request(change))
        self._report(up)

    def _policy_failed(self, error: PolicyError) -> None:
        log.error("%s; round-robin takes over", error)
        self._report(RouterFailed(str(error)))

    def _report(self, message: EngineDown | EngineUp | Undelivered | RouterFailed) -> None:
        assert self._async_llm is not None
        if self._handovers is not None and isinstance(message, Undelivered):
            self._handovers.forget(message.request_ids)
        self._async_llm.tell(message)
