"""An abort that arrives with the last step of a prompt on a prefilling engine: the request ends once, and
its blocks are freed.
"""

from typing import Any

from sundog.actors.core.request import Submit
from sundog.actors.core.routers.fleet_state import FleetState
from sundog.actors.core.routers.prefix_index import new_index
from sundog.actors.kernel.actor import Actor
from sundog.actors.messages import Capacity, EngineRefs, Finish, KvFetched, Undelivered
from sundog.actors.router.handovers import Handovers


class Told(Actor[Any]):
    """The scheduler of an engine, which has not begun, and what it was told."""

    @property
    def messages(self) -> list[Any]:
        return [message for message, _ in self.mailbox.queue]


class Owner:
    """The Router, which reports; it is asked for no engine here."""

    def __init__(self) -> None:
        self.reported: list[Undelivered] = []

    def undelivered(self, undelivered: Undelivered) -> None:
        self.reported.append(undelivered)


def begun() -> tuple[Handovers, Owner, FleetState, Told]:
    owner, fleet, engine = Owner(), FleetState(new_index("none"), 0), Told("scheduler")
    fleet.add(num_blocks=10, block_size=16)
    ref = engine.ref("router")
    handovers = Handovers(owner, fleet, [EngineRefs(ref, ref, Capacity(10, 16))], None)
    leg = handovers.first_leg(Submit("a", 0.0, num_prompt_tokens=20, max_tokens=5))
    assert leg.hands_over and leg.max_tokens == 1
    fleet.begin(0.0)
    fleet.send(leg, 0)
    return handovers, owner, fleet, engine


def test_a_request_that_was_computed_before_its_abort_arrived_is_over() -> None:
    handovers, owner, fleet, engine = begun()
    assert not handovers.abort("a")  # the engine is told
    handovers.follow((Finish("a", "handed", block_ids=(3, 4)),))
    assert fleet.replica_of("a") is None and owner.reported == [Undelivered(("a",))]
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
