"""The engine process on a Ray cluster: an actor, in which a core lives behind a link of ours.

Ray starts it, starts it again when its process or its node is gone, and ends it. Everything else goes over
the link, which the process opens to the server; Ray's own calls carry what begins it.
"""

import os
import platform
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pkgutil import resolve_name
from typing import NamedTuple

import ray
import trio

from actors.config import ConfigError
from runtime.wire.records import fingerprint
from runtime.wire.sockets import connected
from runtime.worker.messages import WORKER_MESSAGES

Life = Callable[[int, socket.socket], None]
"""The life of an engine process: its replica, and its end of the link."""


class Facts(NamedTuple):
    """What an engine process says of itself before it begins."""

    host: str
    node: str
    """Ray's id of it."""
    process: int
    versions: tuple[tuple[str, str], ...]
    refusal: str | None
    """Why there can be no engine there."""


class EngineActor:
    """Calls `prepare` (`module:function`) with the orders of the server for a Life, in its `folder`."""

    def __init__(self, prepare: str, orders: bytes, folder: str) -> None:
        with suppress(OSError):  # paths are whole where it is not there
            os.chdir(folder)
        self._life: Life | None = None
        self._refusal: str | None = None
        try:
            self._life = resolve_name(prepare)(orders)
        except (ConfigError, ModuleNotFoundError) as error:
            self._refusal = str(error)

    def facts(self) -> Facts:
        """Where it is, and what it was made of."""
        context = ray.get_runtime_context()
        return Facts(
            ray.util.get_node_ip_address(), context.get_node_id(), os.getpid(), versions(), self._refusal
        )

    def live(self, replica: int, host: str, port: int, secret: bytes) -> None:
        """Live behind a link to the server, which listens at that address. The process ends with it."""
        assert self._life is not None, self._refusal
        link = trio.run(partial(connected, (host, port), WORKER_MESSAGES, secret))
        self._life(replica, link)
        ray.actor.exit_actor()


def versions() -> tuple[tuple[str, str], ...]:
    """What must be the same at both ends, by name."""
    try:
        ours = version("sundog")
    except PackageNotFoundError:
        ours = "that is not installed"
    python = ".".join(platform.python_version_tuple()[:2])
    return ("Sundog", ours), ("Python", python), ("messages", fingerprint(WORKER_MESSAGES).hex())


def kill_process(process: int) -> None:
    """End a process of this node at once, unless it has ended."""
    with suppress(ProcessLookupError):
        os.kill(process, 9)
