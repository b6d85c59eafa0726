"""Server's clock in its engine processes, so that times mean the same on both sides.

After the handshake the server requests several readings of the process's clock, and then sends how far that
clock is behind its own. Every message is one byte and a number: `READ`, its answer, and `SET`. On one machine
both clocks are the same, and no readings are needed.
"""

import socket
import struct
import time

import trio

from sundog.runtime.wire.frames import WireError

SAID = struct.Struct("<cd")
READ, SET = b"?", b"="
NUM_READINGS = 8
"""Number of readings from another machine; the one with the shortest round trip counts."""
SET_S = 10.0


class ServerClock(trio.abc.Clock):
    """Clock of the server's run, which is `offset_s` ahead of the machine's."""

    def __init__(self, offset_s: float) -> None:
        self._offset_s = offset_s

    def start_clock(self) -> None:
        """Do nothing, as the clock already runs."""

    def current_time(self) -> float:
        return self._offset_s + time.perf_counter()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return deadline - self.current_time()


async def set_clock(connected: socket.socket, *, is_here: bool) -> None:
    """Send the other process the lag of its clock in seconds; WireError if it is gone.

    Between machines the error is at most half of the shortest round trip.
    """
    stream = trio.socket.from_stdlib_socket(connected.dup())
    try:
        with trio.fail_after(SET_S):
            if is_here:
                offset_s = trio.current_time() - time.perf_counter()
            else:
                readings = [await _reading(stream) for _ in range(NUM_READINGS)]
                offset_s = min(readings)[1]
            await stream.send(SAID.pack(SET, offset_s))
    except (OSError, trio.TooSlowError) as error:
        raise WireError(f"its clock cannot be set: {error}") from error
    finally:
        stream.close()


async def _reading(stream: trio.socket.SocketType) -> tuple[float, float]:
    """Return the seconds of a round trip, and the other clock's lag, assuming symmetry."""
    begin_s = trio.current_time()
    await stream.send(SAID.pack(READ, 0.0))
    answer = b""
    while len(answer) < SAID.size:
        more = await stream.recv(SAID.size - len(answer))
        if not more:
            raise OSError("it hung up")
        answer += more
    end_s = trio.current_time()
    return end_s - begin_s, (begin_s + end_s) / 2 - float(SAID.unpack(answer)[1])


def offset_s(connected: socket.socket) -> float:
    """Receive the offset to the server's clock in seconds; EOFError if the server is gone."""
    connected.setblocking(True)
    while True:
        said = connected.recv(SAID.size, socket.MSG_WAITALL)
        if len(said) < SAID.size:
            raise EOFError("the server is gone")
        command, number = SAID.unpack(said)
        if command == SET:
            return float(number)
        connected.sendall(SAID.pack(READ, time.perf_counter()))
