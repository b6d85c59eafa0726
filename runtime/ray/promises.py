"""Ray's promises for Trio tasks, without waiting threads, and Ray's long messages cut to a line."""

from contextlib import suppress
from typing import Any

import ray
import trio


def why(error: Exception) -> str:
    """Return why something on a cluster ended, in at most 300 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = lines[-1] if lines else type(error).__name__
    if type(error).__name__ == "ActorUnavailableError":
        said = said.rpartition("unavailable: ")[2].partition(". The task may")[0]
    return said[:300]


async def answered(promise: Any) -> Any:
    """Return the value of Ray's promise once it is fulfilled; raise its error."""
    token, is_there = trio.lowlevel.current_trio_token(), trio.Event()

    def tell(_: object) -> None:
        with suppress(trio.RunFinishedError):  # nobody waits any more
            token.run_sync_soon(is_there.set)

    future = promise.future()
    future.add_done_callback(tell)
    await is_there.wait()
    return future.result()


async def end_of(reaped: Any) -> str:
    """Return how a process ended, in words: its promised result, or the promise's error."""
    try:
        return str(await answered(reaped))
    except ray.exceptions.RayError as error:
        return f"ended ({why(error)})"
