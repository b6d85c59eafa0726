"""Latency to an engine in a process of its own, measured with a process that answers at once.

`python -m sundog.runtime.worker.hop_probe FD PARENT` is that process. A request is packed, sent, read,
unpacked and passed to an actor there, and a small answer comes back the same way: each direction is assumed
to take half. Longer prompts lengthen only the way there.
"""

import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import trio

from sundog.actors.config import ConfigError
from sundog.actors.config.hop_costs import HopCosts
from sundog.actors.kernel.actor import Actor, ActorDied, Handled, Ref
from sundog.actors.kernel.reply import answer
from sundog.actors.messages import Capacity, Load, Submit
from sundog.runtime.host.python import module_command
from sundog.runtime.wire.frames import WireError
from sundog.runtime.wire.handshake import shake_hands
from sundog.runtime.wire.link import Link
from sundog.runtime.worker.life import begin_life
from sundog.runtime.worker.messages import WORKER_MESSAGES


async def live_for(connected: socket.socket, messages: Sequence[type], actor: Actor[Any], peer: str) -> None:
    """Accept a connection, and run this actor until it ends; raises WireError if the caller is not ours."""
    await shake_hands(connected, messages, b"", called=True)
    link = Link(connected, messages, peer)
    async with trio.open_nursery() as nursery:
        hold = actor.ref("process")
        await nursery.start(actor.live)
        link.export(actor)
        await link.run()
        hold.close()


LENGTHS = (1, 1024, 4096)
"""Numbers of prompt tokens to measure."""
NUM_ROUNDS, NUM_WARM = 300, 20
ENOUGH_S, LATE_S = 5.0, 60.0
"""Seconds after which the measurement ends, and limit including the start of the other process."""
LARGEST_ID = 150_000
"""Largest token id sent: large vocabularies take three bytes a token."""


class Answering(Actor[Submit | Load]):
    """Actor that answers at once, after earlier messages."""

    def handle(self, message: Submit | Load) -> Handled:
        return answer(message, Capacity(2, 1)) if isinstance(message, Load) else None


def measured_hops() -> HopCosts:
    """Return medians for this machine, in seconds. Raises ConfigError if the process does not answer."""
    here, there = socket.socketpair()
    with here, there:
        command = module_command(__name__, str(there.fileno()), str(os.getpid()))
        process = subprocess.Popen(command, pass_fds=(there.fileno(),), stdin=subprocess.DEVNULL)
        there.close()
        try:
            return hops_of(trio.run(partial(_asked, here)))
        except (ExceptionGroup, ActorDied, OSError, WireError, trio.TooSlowError) as error:
            first: Exception = error
            while isinstance(first, ExceptionGroup):
                first = first.exceptions[0]
            why = str(first) or "it was too slow"
            raise ConfigError(f"the hop to a process cannot be measured: {why}; give --no-http") from error
        finally:
            process.kill()
            process.wait()


def hops_of(rounds: Sequence[Sequence[float]]) -> HopCosts:
    """Return the costs from round trips in seconds, one for each of `LENGTHS` in every repetition."""
    shortest, *longer = (statistics.median(times) for times in zip(*rounds, strict=True))
    slopes = [
        (each - shortest) / (length - LENGTHS[0]) for each, length in zip(longer, LENGTHS[1:], strict=True)
    ]
    return HopCosts(submit=shortest / 2, token=max(0.0, statistics.fmean(slopes)), output=shortest / 2)


async def _asked(connected: socket.socket) -> list[list[float]]:
    with trio.fail_after(LATE_S):
        await shake_hands(connected, WORKER_MESSAGES, b"", called=False)
        return await _rounds(Link(connected, WORKER_MESSAGES, "the process that answers"))


async def _rounds(link: Link) -> list[list[float]]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        far = await link.open("answering", "probe")
        for number in range(NUM_WARM):
            await _round_trip(far, f"warm-{number}", LENGTHS[-1])
        end_s, rounds = time.perf_counter() + ENOUGH_S, list[list[float]]()
        while len(rounds) < NUM_ROUNDS and (time.perf_counter() < end_s or not rounds):
            number = len(rounds)
            rounds.append([await _round_trip(far, f"probe-{number}-{each}", each) for each in LENGTHS])
        nursery.cancel_scope.cancel()
    return rounds


async def _round_trip(far: Ref[Submit | Load], name: str, num_tokens: int) -> float:
    prompt = tuple((17 * position) % LARGEST_ID for position in range(num_tokens))
    request = Submit(name, 0.0, num_prompt_tokens=num_tokens, max_tokens=16, prompt_token_ids=prompt)
    begin_s = time.perf_counter()
    far.tell(request)
    await far.ask(Load())
    return time.perf_counter() - begin_s


if __name__ == "__main__":
    begin_life("sundog probe", int(sys.argv[2]))
    asker = socket.socket(fileno=int(sys.argv[1]))
    trio.run(live_for, asker, WORKER_MESSAGES, Answering("answering"), "the probe")
