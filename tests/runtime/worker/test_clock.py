"""The server's clock in another process, by exchanged readings if the machine's clock differs."""

import socket
import threading
import time

import pytest
import trio

from sundog.runtime.wire.frames import WireError
from sundog.runtime.worker.clock import offset_s, set_clock

FAR_S = 60.0
"""Clocks that are not set differ by a random start of Trio's, which is 10,000 s and more."""


@pytest.mark.wall_clock
@pytest.mark.parametrize("is_here", [True, False])
async def test_the_process_has_the_time_of_the_server(is_here: bool) -> None:
    """Said outright on one machine, and found by readings from another."""
    ours, theirs = socket.socketpair()
    said: list[float] = []
    process = threading.Thread(target=lambda: said.append(offset_s(theirs)))
    process.start()
    with ours, theirs:
        await set_clock(ours, is_here=is_here)
        await trio.to_thread.run_sync(process.join)
        true_s = trio.current_time() - time.perf_counter()
    assert abs(said[0] - true_s) < FAR_S


@pytest.mark.wall_clock
async def test_a_process_that_hangs_up_instead_of_reading_its_clock_is_an_error_of_the_wire() -> None:
    """And one whose server is gone learns of that."""
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        with pytest.raises(WireError, match="its clock cannot be set"):
            await set_clock(ours, is_here=False)
    ours, theirs = socket.socketpair()
    with theirs:
        ours.close()
        with pytest.raises(EOFError):
            offset_s(theirs)
