"""Cost of a hop between processes: asks and tells to a child process, and a step of 256 decoding requests.

    python -m tests.bench wire [--tcp]

The other end is a process of its own, forked from this one. In brackets: the same in this process.
"""

import argparse
import os
import signal
import socket
import statistics
import time
from functools import partial

import trio

from sundog.actors.core.batch import Admission, Batch
from sundog.actors.core.params.sampling import DEFAULTS
from sundog.actors.kernel.actor import Actor, Ref
from sundog.actors.messages import Abort, Capacity, Load, StepOutput
from sundog.runtime.wire.handshake import shake_hands
from sundog.runtime.wire.link import Link
from sundog.runtime.wire.records import Packer, Unpacker
from sundog.runtime.worker.hop_probe import live_for
from sundog.runtime.worker.messages import MESSAGES

NUM_ASKS, NUM_TELLS, NUM_STEPS = 2000, 20_000, 2000


def names(num_requests: int) -> list[str]:
    return [f"cmpl-{number:032x}" for number in range(num_requests)]


def admitted(num_requests: int) -> Batch:
    """The batch in which all begin."""
    admissions = [
        Admission(name, 9, 9, 0, (n,), (1,) * 9, DEFAULTS) for n, name in enumerate(names(num_requests))
    ]
    return Batch(1, admitted=tuple(admissions))


def decode_step(num_requests: int, step: int, *, all_grow: bool = False) -> StepOutput:
    """A step of steady decoding: each gets a token, and every sixteenth, or every one, a block."""
    grown = [
        (name, (n + step,)) for n, name in enumerate(names(num_requests)) if all_grow or (n + step) % 16 == 0
    ]
    tokens = tuple((name, (n * step) % 1536) for n, name in enumerate(names(num_requests)))
    batch = Batch(step, num_decodes=num_requests, new_blocks=tuple(grown))
    return StepOutput(0, batch, 1.0 * step, (1.0 * step + 0.5,), tokens, (), num_requests, 0, 1000)


class Echo(Actor[Load | Abort | StepOutput]):
    """Answers what is asked, and drops the rest."""

    def handle(self, message: Load | Abort | StepOutput) -> object:
        return Capacity(2, 16) if isinstance(message, Load) else None


def per_call_us(began_s: float, count: int) -> float:
    return (time.perf_counter() - began_s) / count * 1e6


async def measure(ref: Ref[Load | Abort]) -> tuple[float, float, float]:
    """An ask (median), a tell as its sender feels it, and a tell until it is handled, in µs."""
    asks = []
    for _ in range(NUM_ASKS):
        began_s = time.perf_counter()
        await ref.ask(Load())
        asks.append(per_call_us(began_s, 1))
    abort = Abort(("cmpl-0",))
    began_s = time.perf_counter()
    for _ in range(NUM_TELLS):
        ref.tell(abort)
    told_us = per_call_us(began_s, NUM_TELLS)
    await ref.ask(Load())
    return statistics.median(asks), told_us, per_call_us(began_s, NUM_TELLS)


async def parent(connected: socket.socket) -> None:
    await shake_hands(connected, MESSAGES, b"", called=False)
    link = Link(connected, MESSAGES, "the child")
    async with trio.open_nursery() as nursery:
        here = Echo("echo")
        near = here.ref("bench")
        await nursery.start(here.live)
        local = await measure(near)
        nursery.start_soon(link.run)
        far = await link.open("echo", "bench")
        what = ("ask", "tell, sent", "tell, handled")
        for name, there_us, here_us in zip(what, await measure(far), local, strict=True):
            print(f"{name:<15} {there_us:7.1f} µs  ({here_us:.1f})")
        frames, sent_bytes = link.num_sent, link.num_sent_bytes
        for step in range(NUM_STEPS):
            far.tell(decode_step(256, step))
        await far.ask(Load())
        frames, sent_bytes = link.num_sent - frames - 1, link.num_sent_bytes - sent_bytes
        token_bytes = sent_bytes / NUM_STEPS / 256
        print(f"a step of 256   {frames / NUM_STEPS:.2f} frames, {token_bytes:.1f} bytes a token")
        near.close()
        nursery.cancel_scope.cancel()


def records() -> None:
    """What making a message bytes and back costs."""
    packer, unpacker = Packer(MESSAGES), Unpacker(MESSAGES)
    output = decode_step(256, 3)
    began_s = time.perf_counter()
    for _ in range(NUM_STEPS):
        packed = packer.pack(output)
    packed_us = per_call_us(began_s, NUM_STEPS)
    began_s = time.perf_counter()
    for _ in range(NUM_STEPS):
        unpacker.unpack(*packed)
    print(f"a step of 256   {packed_us:.0f} µs to pack, {per_call_us(began_s, NUM_STEPS):.0f} to unpack")
    usual, worst = (len(packer.pack(decode_step(256, 3, all_grow=grow).batch)[1]) for grow in (False, True))
    print(f"its batch       {usual} bytes, {worst} where every request grows by a block")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tcp", action="store_true", help="over TCP instead of a Unix socket")
    near, far = tcp_pair() if parser.parse_args().tcp else socket.socketpair()
    records()
    process = os.fork()
    if process == 0:
        near.close()
        trio.run(live_for, far, MESSAGES, Echo("echo"), "the bench")
        os._exit(0)
    far.close()
    try:
        trio.run(partial(parent, near))
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = socket.create_connection(listening.getsockname())
        far, _ = listening.accept()
    for each in (near, far):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near, far
