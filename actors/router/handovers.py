"""Hand-over of requests between engines: from a prefilling one to a decoding one, as with vLLM's NIXL
connector, or between engines of one role when the router's policy moves a request.

    Submit, one token ──▶ prefills ──handed──▶ Pull ──▶ reserves ──Reserved──▶ FetchKv ──▶ links
                          frees ◀──KvFetched──┐                       KvFetched ──▶ decodes      │
                                            └────────────────────────────┴───── Done ◀───────┘

The decoding engine is chosen when the prompt is computed. It allocates blocks for the whole prompt, fetches
them, and computes the last prompt token again to sample the first output token. A request lost on the way,
with an engine or a link, is reported as undelivered and begins again from the start; its blocks on the
prefilling engine are freed `HOLD_S` later.

A moved request takes the same path, from a HandOver on instead of its first token, and brings its tokens
along, the last of which is computed again. Without blocks, or without links, it is sent as a Submit, and all
its tokens are computed again; so is one whose blocks are lost on the way. If there is no room for it, it
returns to its blocks. Its reader notices nothing.
"""

from dataclasses import replace
from typing import Protocol

from sundog.actors.core.params.sampling import Sampling
from sundog.actors.core.records import dataclass
from sundog.actors.core.request import Submit
from sundog.actors.core.routers.fleet_state import FleetState
from sundog.actors.kernel.actor import ActorDied, Ref, Reply
from sundog.actors.kernel.reply import Reader
from sundog.actors.messages import (
    CeaseFetch,
    Done,
    EngineRefs,
    FetchKv,
    Finish,
    HandOver,
    KvFetched,
    Pull,
    Refused,
    Reserved,
    ToEngine,
    Undelivered,
    Withdraw,
)

HOLD_S = 480.0
"""Seconds to keep unfetched blocks: vLLM's default for VLLM_NIXL_ABORT_REQUEST_TIMEOUT."""


@dataclass(frozen=True, slots=True)
class HoldIsOver:
    """Message of the Router to itself: the time limit for fetching a request's blocks has passed."""

    request_id: str
    replica: int


class Moving:
    """Request between two engines; its prompt is in `blocks` of its `source`.

    The `target` is None until one has been chosen.
    """

    __slots__ = ("blocks", "source", "submit", "target")

    def __init__(self, submit: Submit, source: int, blocks: tuple[int, ...]) -> None:
        self.submit, self.source, self.blocks = submit, source, blocks
        self.target: int | None = None


class HandoverOwner(Protocol):
    """Part of the Router that chooses replicas, reports losses, and sets timers, as Handovers need it."""

    def choose_decoding(self, submit: Submit) -> int | None:
        """Return the replica that is to decode a request; None while none is up."""
        ...

    def go_on(self, submit: Submit, replica: int | None) -> None:
        """Send a request with its tokens to a replica, or to another if that is down."""
        ...

    def undelivered(self, undelivered: Undelivered) -> None:
        """Report requests that no engine has."""
        ...

    def hold_until(self, hold: HoldIsOver, seconds: float) -> None:
        """End the hold of a request's blocks after these seconds."""
        ...

    def look_again(self) -> None:
        """Place held requests, and answer drains, if anything has left a replica."""
        ...


class _NextLeg(Reader):
    """Reader of what a request between two engines waits for: room on its target, then its blocks.

    An error means a dead engine, which is reported as down.
    """

    __slots__ = ("_handovers", "_has_room", "_moving")

    def __init__(self, handovers: "Handovers", moving: Moving, *, has_room: bool) -> None:
        self._handovers, self._moving, self._has_room = handovers, moving, has_room

    def take_answer(self, value: object, error: BaseException | None) -> None:
        if error is None:
            self._handovers.answered(self._moving, value, has_room=self._has_room)


class Handovers:
    """Requests of one Router that are prefilled on one engine and decoded on another."""

    def __init__(
        self,
        owner: HandoverOwner,
        state: FleetState,
        engines: list[EngineRefs | None],
        links: Ref[FetchKv | CeaseFetch] | None,
    ) -> None:
        self._owner, self._state, self._engines, self._links = owner, state, engines, links
        self._leaving: dict[str, int | None] = {}
        """Target replica of each request being handed over; None: its client has left."""
        self._prefilling: dict[str, Submit | None] = {}
        """Requests whose prompt is being computed, by name; None: its client has left."""
        self._moving: dict[str, Moving] = {}

    def reads_from(self, replica: int) -> bool:
        """Return whether another engine is fetching blocks of a replica. O(requests in transfer)"""
        return any([moving.source == replica for moving in self._moving.values()])

    def close(self) -> None:
        """Hang up on the links; idempotent."""
        if self._links is not None:
            self._links.close()

    def move(self, name: str, target: int) -> None:
        """Move a request to another replica, as soon as its own can hand it over."""
        sent = self._state.sent(name)
        assert sent is not None and not sent.is_moving, f"{name} cannot be moved"
        sent.is_moving = True
        self._leaving[name] = target
        self._tell(sent.replica, HandOver(name, self._links is not None))

    def first_leg(self, submit: Submit) -> Submit:
        """Return the request for the engine that computes its prompt."""
        self._prefilling[submit.request_id] = submit
        return _leg(submit, submit.sampling, max_tokens=1, predicted_tokens=1, hands_over=True)

    def follow(self, finished: tuple[Finish, ...]) -> None:
        """Handle requests that ended on an engine: send those handed over to the next."""
        for finish in finished:
            if finish.moves is not None:
                self._moves(finish, finish.moves)
            elif finish.reason == "handed":
                self._handed(finish)
            else:
                if finish.request_id in self._prefilling:
                    del self._prefilling[finish.request_id]
                if self._leaving:
                    self._leaving.pop(finish.request_id, None)
                if (sent := self._state.sent(finish.request_id)) is not None:
                    sent.is_moving = True  # to nowhere: it is known until its reader has heard of its end

    def _moves(self, finish: Finish, submit: Submit) -> None:
        name = submit.request_id
        source, target = self._state.replica_of(name), self._leaving.pop(name, None)
        assert source is not None, f"{name} has left an engine that did not have it"
        self._state.end(name)
        if target is not None and submit.has_remote_kv and self._engines[target] is not None:
            moving = self._moving[name] = Moving(submit, source, finish.block_ids)
            self._pull(moving, target)
        elif target is not None:
            self._compute_again(submit, source, target)
        else:
            self._tell(source, KvFetched((name,)))
            self._owner.undelivered(Undelivered((name,)))

    def _compute_again(self, submit: Submit, source: int, target: int | None = None) -> None:
        if submit.has_remote_kv:
            self._tell(source, KvFetched((submit.request_id,)))
        self._owner.go_on(replace(submit, has_remote_kv=False), target)

    def _handed(self, finish: Finish) -> None:
        name = finish.request_id
        source, submit = self._state.replica_of(name), self._prefilling.pop(name)
        assert source is not None, f"{name} is handed over by an engine that did not have it"
        self._state.end(name)
        if submit is None:  # the abort and the last step of the prompt have crossed
            self._tell(source, KvFetched((name,)))
            return self._owner.undelivered(Undelivered((name,)))
        num_blocks = -(-submit.num_prompt_tokens // self._state.block_size)
        moving = Moving(_second_leg(submit), source, finish.block_ids[:num_blocks])
        self._moving[name] = moving
        target = self._owner.choose_decoding(moving.submit)
        if target is None:
            return self._lose(moving)
        self._pull(moving, target)

    def _pull(self, moving: Moving, target: int) -> None:
        moving.target = target
        self._state.send(moving.submit, target)
        engine = self._engines[target]
        assert engine is not None, "a replica that is up has an engine"
        try:
            reply: Reply[Reserved | Refused] = engine.scheduler.request(Pull(moving.submit))
        except ActorDied:  # its end is on its way here, and takes the request along
            return
        reply.hand_to(_NextLeg(self, moving, has_room=False))

    def answered(self, moving: Moving, answer: object, *, has_room: bool) -> None:
        """Continue with a request: its target has answered or, if that `has_room`, its blocks have come."""
        if self._moving.get(moving.submit.request_id) is moving:
            if has_room:
                self._fetched(moving, answer)
            else:
                self._reserved(moving, answer)
        self._owner.look_again()

    def _reserved(self, moving: Moving, answer: object) -> None:
        name = moving.submit.request_id
        if isinstance(answer, Refused):
            self._state.end(name)
            return self._pull(moving, moving.source)
        assert isinstance(answer, Reserved) and moving.target is not None
        if moving.target == moving.source:
            return self._fetched(moving, Done())
        assert self._links is not None, "nothing is pulled without links"
        target_blocks = answer.block_ids
        source_blocks = moving.blocks[len(moving.blocks) - len(target_blocks) :]
        num_tokens = len(target_blocks) * self._state.block_size
        fetch = FetchKv(
            name,
            moving.source,
            target=moving.target,
            num_tokens=num_tokens,
            source_blocks=source_blocks,
            target_blocks=target_blocks,
        )
        reply: Reply[Done | Refused] = self._links.request(fetch)
        reply.hand_to(_NextLeg(self, moving, has_room=True))

    def _fetched(self, moving: Moving, answer: object) -> None:
        if isinstance(answer, Refused):
            return self._lose(moving)
        name, target = moving.submit.request_id, moving.target
        assert target is not None
        del self._moving[name]
        self._state.num_changes += 1  # its blocks have left the source
        fetched = KvFetched((name,))
        self._tell(moving.source, fetched)
        self._tell(target, fetched)

    # --- ends on the way -------------------------------------------------------------------------

    def abort(self, name: str) -> bool:
        """End a request between two engines, with its blocks on both; False if it is not there."""
        moving = self._moving.pop(name, None)
        if moving is None:
            for known in (self._prefilling, self._leaving):
                if name in known:
                    known[name] = None  # it may have left its engine already
            return False
        self._stop(moving)
        self._tell(moving.source, KvFetched((name,)))
        self._owner.undelivered(Undelivered((name,)))
        return True

    def forget(self, names: tuple[str, ...]) -> None:
        """Remove requests that no engine has, because they were held or no engine was up."""
        for name in names:
            self._prefilling.pop(name, None)

    def engine_down(self, replica: int, sent: tuple[str, ...]) -> tuple[str, ...]:
        """Drop transfers from or to a lost engine, which had been `sent` these; return the lost requests."""
        lost = dict.fromkeys(sent)
        self.forget(sent)
        for name in sent:
            self._leaving.pop(name, None)
        for name, moving in list(self._moving.items()):
            if replica not in (moving.source, moving.target):
                continue
            del self._moving[name]
            self._stop(moving)
            if moving.submit.begun is not None:
                lost.pop(name, None)
                self._compute_again(moving.submit, moving.source)
            elif moving.source == replica:
                lost[name] = None
            else:
                self._owner.hold_until(HoldIsOver(name, moving.source), HOLD_S)
        return tuple(lost)

    def hold_is_over(self, hold: HoldIsOver) -> None:
        """Free unfetched blocks, unless the request is there again."""
        moving = self._moving.get(hold.request_id)
        if moving is None or moving.source != hold.replica:
            self._tell(hold.replica, KvFetched((hold.request_id,)))

    def _lose(self, moving: Moving) -> None:
        name = moving.submit.request_id
        del self._moving[name]
        self._stop(moving)
        if moving.submit.begun is not None:
            return self._compute_again(moving.submit, moving.source)
        self._owner.hold_until(HoldIsOver(name, moving.source), HOLD_S)
        self._owner.undelivered(Undelivered((name,), was_lost=moving.target is not None))

    def _stop(self, moving: Moving) -> None:
        name = moving.submit.request_id
        if moving.target is not None:
            assert self._links is not None, "nothing is pulled without links"
            self._links.tell(CeaseFetch(name))
            self._state.end(name)
            self._tell(moving.target, Withdraw((name,)))

    def _tell(self, replica: int, message: ToEngine) -> None:
        engine = self._engines[replica]
        if engine is not None:
            try:
                engine.scheduler.tell(message)
            except ActorDied:
                return


def _second_leg(submit: Submit) -> Submit:
    sampling = submit.sampling
    if sampling.prompt_logprobs is not None:
        sampling = replace(sampling, prompt_logprobs=None)
    return _leg(submit, sampling, submit.max_tokens, submit.predicted_tokens, has_remote_kv=True)


def _leg(
    submit: Submit,
    sampling: Sampling,
    max_tokens: int,
    predicted_tokens: int | None,
    *,
    hands_over: bool = False,
    has_remote_kv: bool = False,
) -> Submit:
    """Return a request as one of two engines gets it; `replace` would take five times as long."""
    return Submit(
        request_id=submit.request_id,
        arrival_s=submit.arrival_s,
        num_prompt_tokens=submit.num_prompt_tokens,
        max_tokens=max_tokens,
        prompt_token_ids=submit.prompt_token_ids,
        block_hashes=submit.block_hashes,
        sampling=sampling,
        eos_token_id=submit.eos_token_id,
        priority=submit.priority,
        cache_salt=submit.cache_salt,
        tenant=submit.tenant,
        slo_ttft_s=submit.slo_ttft_s,
        predicted_tokens=predicted_tokens,
        slo_tpot_s=submit.slo_tpot_s,
        slo_e2e_s=submit.slo_e2e_s,
        adapter=submit.adapter,
        session=submit.session,
        trace_headers=submit.trace_headers,
        has_remote_kv=has_remote_kv or submit.has_remote_kv,
        refused=submit.refused,
        retry_after_s=submit.retry_after_s,
        hands_over=hands_over or submit.hands_over,
        begun=submit.begun,
        reached_s=submit.reached_s,
    )
