"""Cut connections to a clerk in a Ray process: waiting callers get an error, and the clerk ends."""

import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("ray", reason="the ray extra is not installed")

import trio

from sundog.actors.kernel.actor import ActorDied
from sundog.runtime.ray.promises import answered
from sundog.runtime.wire.link import Link
from tests.actors.clerk import Clerk, Note
from tests.runtime.ray.far import MESSAGES, OverRay, met_socket
from tests.runtime.wire.test_link import NUM_NOTES, Relay, cuts

pytestmark = [pytest.mark.ray, pytest.mark.wall_clock]


@contextlib.asynccontextmanager
async def relayed(host: Any, out: Relay, back: Relay) -> AsyncIterator[tuple[Link, Any]]:
    """A link to a new clerk there, through relays, and the promise of what it will have handled."""
    connected, promise = await met_socket(host, "clerk", None, is_mirrored=False)
    near, near_relay = socket.socketpair()
    near_relay.setblocking(False)
    left, right = (trio.socket.from_stdlib_socket(each) for each in (near_relay, connected))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(out.carry, left, right)
        nursery.start_soon(back.carry, right, left)
        yield Link(near, MESSAGES, "the process of Ray"), promise


async def converse(host: Any, out: Relay, back: Relay) -> tuple[list[int], list[object]]:
    """A short life of a channel; the numbers that were handled there, and what was answered."""
    answers: list[object] = []
    with trio.fail_after(60):
        async with relayed(host, out, back) as (near, promise), trio.open_nursery() as nursery:
            nursery.start_soon(near.run)
            try:
                ref = await near.open("clerk", "test")
                ref.tell(Note("test", 0))
                replies = [ref.request(Note("test", number)) for number in range(1, NUM_NOTES)]
                for reply in replies:
                    try:
                        answers.append(await reply.wait())
                    except ActorDied as error:
                        answers.append(error)
                ref.close()
            except ActorDied as error:
                answers.append(error)
            near.end("the test is over")
            return await answered(promise), answers
    raise AssertionError


async def test_a_link_cut_anywhere_leaves_nobody_waiting_here_or_there(host: Any) -> None:
    """At every frame and within each, in both directions; the clerk, whom nobody holds then, ends."""
    out, back = Relay(), Relay()
    assert await converse(host, out, back) == ([0, 1, 2, 3], [1, 2, 3])
    num_answered = set()
    for direction, whole in enumerate((out, back)):
        for most_bytes in await cuts(whole):
            relays = [Relay(), Relay()]
            relays[direction].most_bytes = most_bytes
            numbers, answers = await converse(host, *relays)
            assert numbers == list(range(len(numbers)))
            good = [answer for answer in answers if isinstance(answer, int)]
            assert good == list(range(1, len(good) + 1)) and len(good) < len(numbers) + 1
            num_answered.add(len(good))
    assert num_answered == {0, 1, 2, 3}


async def test_a_process_of_ray_that_is_killed_fails_every_question(host: Any) -> None:
    """At once, of all clerks that lived there; the last test of this process."""
    place = OverRay(host)
    async with trio.open_nursery() as nursery:
        refs = [await place.start(nursery, Clerk(name)) for name in ("clerk", "another")]
        replies = [ref.request(Note("test", 0, "later")) for ref in refs]
        await place.settle()
        os.kill(await answered(host.process.remote()), signal.SIGKILL)
        for ref, reply in zip(refs, replies, strict=True):
            with trio.fail_after(60), pytest.raises(ActorDied):
                await reply.wait()
            with pytest.raises(ActorDied):
                ref.tell(Note("test", 1))
