"""Calls of functions that run Trio, also from within an event loop."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import trio

from sundog.ends import leaves

T = TypeVar("T")


def outside_of_loops(function: Callable[[], T]) -> T:
    """Call a function that runs Trio, in a thread of its own if Trio already runs in this one.

    An error in an actor is raised as it is, without the exception groups of nurseries.
    """
    try:
        if not _is_in_loop():
            return function()
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(function).result()
    except BaseExceptionGroup as group:
        raise next(leaves(group)) from None


def _is_in_loop() -> bool:
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return False
    return True
