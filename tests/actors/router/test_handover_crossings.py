"""An abort that crosses the last step of a prompt: the request ends once, and its blocks are free."""

from typing import Any

from sundog.actors.core.request import Submit
from sundog.actors.messages import Finish, KvFetched, Undelivered
from sundog.actors.router.handovers import Handovers


class Told:
    """The scheduler of an engine, and what it was told."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.scheduler = self

    def tell(self, message: Any) -> None:
        self.messages.append(message)


class Fleet:
    """One replica that has every request."""

    block_size = 16

    def __init__(self) -> None:
        self.ended: list[str] = []

    def replica_of(self, name: str) -> int | None:
        return None if name in self.ended else 0

    def sent(self, name: str) -> None:
        return None

    def end(self, name: str) -> None:
        self.ended.append(name)


class Owner:
    """The Router, which reports; it is asked for no engine here."""

    def __init__(self) -> None:
        self.reported: list[Undelivered] = []

    def undelivered(self, undelivered: Undelivered) -> None:
        self.reported.append(undelivered)


def begun() -> tuple[Handovers, Owner, Fleet, Told]:
    owner, fleet, engine = Owner(), Fleet(), Told()
    handovers = Handovers(owner, fleet, [engine], None)  # type: ignore[arg-type, list-item]
    leg = handovers.first_leg(Submit("a", 0.0, num_prompt_tokens=20, max_tokens=5))
    assert leg.hands_over and leg.max_tokens == 1
    return handovers, owner, fleet, engine


def test_a_request_that_was_computed_before_its_abort_arrived_is_over() -> None:
    handovers, owner, fleet, engine = begun()
    assert not handovers.abort("a")  # the engine is told
    handovers.follow((Finish("a", "handed", block_ids=(3, 4)),))
    assert fleet.ended == ["a"] and owner.reported == [Undelivered(("a",))]
    assert engine.messages == [KvFetched(("a",))]


def test_a_request_that_no_engine_has_is_forgotten() -> None:
    """As one that was aborted while the Router held it: no end of an engine's will take it out."""
    handovers, *_ = begun()
    assert not handovers.abort("a")
    handovers.forget(("a",))
    assert not handovers._prefilling


def test_a_request_whose_abort_arrived_first_is_known_no_more() -> None:
    """And another of its name begins anew."""
    handovers, owner, _, engine = begun()
    assert not handovers.abort("a")
    handovers.follow((Finish("a", "aborted"),))
    assert not owner.reported and not engine.messages
    assert not handovers.abort("a")
    assert handovers.first_leg(Submit("a", 0.0, num_prompt_tokens=20, max_tokens=5)).hands_over
