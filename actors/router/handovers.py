"""The way of requests from one engine to another: from one that prefills to one that decodes, as with vLLM's
NIXL connector, or from any to another of its role that the router's policy moves it to.

    Submit, one token ──▶ prefills ──handed──▶ Pull ──▶ reserves ──Reserved──▶ FetchKv ──▶ links
                          frees ◀──KvFetched──┐                       KvFetched ──▶ decodes      │
                                            └────────────────────────────┴───── Done ◀───────┘

The engine that decodes is chosen when the prompt is computed. It takes blocks for the whole prompt, fetches
them, and computes the last token of the prompt again to sample the first of the answer. What is lost on the
way, with an engine or with a link, is reported as undelivered, to begin again from the start; its blocks
where it was prefilled are free `HOLD_S` later.

A request that is moved goes the same way, from a HandOver on instead of its first token, and brings its
tokens along, the last of which is computed again. Without blocks, or without links, it is sent as a Submit,
and all its tokens are computed again; so is one whose blocks are lost on the way. If there is no room for it,
it goes back to its blocks. Its reader notices nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

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
"""The seconds that blocks are kept unfetched: vLLM's default for VLLM_NIXL_ABORT_REQUEST_TIMEOUT."""


@dataclass(frozen=True, slots=True)
class HoldIsOver:
    """The Router tells itself that an engine need not keep a request's blocks any longer."""

    request_id: str
    replica: int


class Moving:
    """A request between two engines: its prompt is in `blocks` of its `source`.

    The `target` is None until one has been chosen.
    """

    __slots__ = ("blocks", "source", "submit", "target")

    def __init__(self, submit: Submit, source: int, blocks: tuple[int, ...]) -> None:
        self.submit, self.source, self.blocks = submit, source, blocks
        self.target: int | None = None


class _NextLeg(Reader):
    """Reader that passes an answer on; an engine that died is reported as down."""

    __slots__ = ("_moving", "_owner", "_step")

    def __init__(
        self, owner: "HandoverOwner", moving: Moving, step: Callable[[Moving, object], None]
    ) -> None:
        self._owner, self._moving, self._step = owner, moving, step

    def take_answer(self, value: object, error: BaseException | None) -> None:
        if error is None:
            self._step(self._moving, value)
            self._owner.look_again()


class HandoverOwner(Protocol):
    """The part of the Router that chooses, reports, and keeps time."""

    def choose_decoding(self, submit: Submit) -> int | None:
        """Return the replica that is to decode a request; None while none is up."""
        ...

    def go_on(self, submit: Submit, replica: int | None) -> None:
        """Send a request with its tokens to a replica, if that is up, else to another."""
        ...

    def undelivered(self, undelivered: Undelivered) -> None:
        """Report requests that no engine has."""
        ...

    def hold_until(self, hold: HoldIsOver, seconds: float) -> None:
        """Have the hold end after these seconds."""
        ...

    def look_again(self) -> None:
        """Place held requests, and answer drains, if something has left a replica."""
        ...


class Handovers:
    """The requests of one Router that are prefilled on one engine and decoded on another."""

    def __init__(
        self,
        owner: HandoverOwner,
        state: FleetState,
        engines: list[EngineRefs | None],
        links: Ref[FetchKv | CeaseFetch] | None,
    ) -> None:
        self._owner, self._state, self._engines, self._links = owner, state, engines, links
        self._leaving: dict[str, int | None] = {}
        """The replica that each request handed over goes to; None: its client has left."""
        self._prefilling: dict[str, Submit | None] = {}
        """The request whose prompt is computed, by name; None: its client has left."""
        self._moving: dict[str, Moving] = {}

    def reads_from(self, replica: int) -> bool:
        """True if blocks of a replica are being fetched by another. O(requests on their way)"""
        return any([moving.source == replica for moving in self._moving.values()])

    def close(self) -> None:
        """Hang up on the links; harmless when repeated."""
        if self._links is not None:
            self._links.close()

    def move(self, name: str, target: int) -> None:
        """Have a request go on at another replica, as soon as its own can hand it over."""
        sent = self._state.sent(name)
        assert sent is not None and not sent.is_moving, f"{name} cannot be moved"
        sent.is_moving = True
        self._leaving[name] = target
        self._tell(sent.replica, HandOver(name, self._links is not None))

    def first_leg(self, submit: Submit) -> Submit:
        """Return a request as the engine gets it that computes its prompt."""
        self._prefilling[submit.request_id] = submit
        return replace(submit, max_tokens=1, predicted_tokens=1, hands_over=True)

    def follow(self, finished: tuple[Finish, ...]) -> None:
        """Requests have ended with an engine: those that are handed over go on to the next."""
        for finish in finished:
            if finish.moves is not None:
                self._moves(finish, finish.moves)
            elif finish.reason == "handed":
                self._handed(finish)
            else:
                self._prefilling.pop(finish.request_id, None)
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
        reply.hand_to(_NextLeg(self._owner, moving, self._reserved))

    def _reserved(self, moving: Moving, answer: object) -> None:
        name = moving.submit.request_id
        if self._moving.get(name) is not moving:
            return
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
        reply.hand_to(_NextLeg(self._owner, moving, self._fetched))

    def _fetched(self, moving: Moving, answer: object) -> None:
        name = moving.submit.request_id
        if self._moving.get(name) is not moving:
            return
        if isinstance(answer, Refused):
            return self._lose(moving)
        del self._moving[name]
        self._state.num_changes += 1  # its blocks have left the source
        assert moving.target is not None
        for replica in (moving.source, moving.target):
            self._tell(replica, KvFetched((name,)))

    # --- ends on the way -------------------------------------------------------------------------

    def abort(self, name: str) -> bool:
        """End a request that is between two engines, with its blocks on both; False if it is not."""
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
        """Forget requests that no engine has: they were held, or there was none to send them to."""
        for name in names:
            self._prefilling.pop(name, None)

    def engine_down(self, replica: int, sent: tuple[str, ...]) -> tuple[str, ...]:
        """Lose what was on its way from or to an engine that had been `sent` these; returns the lost ones."""
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
        """Free blocks that have not been fetched, unless the request is there again."""
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
    return replace(submit, sampling=sampling, has_remote_kv=True)
