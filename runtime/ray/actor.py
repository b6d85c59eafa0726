"""Ray actor of a replica, which has a fork server and forks engine processes on request.

Ray starts it, restarts it when its process or node is gone, and ends it; everything that it forked ends with
it. An engine's messages go over our own link from the forked process to the server; Ray's calls only start it
and report its end.
"""

import os
import platform
import signal
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import NamedTuple

import ray
import trio

from sundog.actors.config import ConfigError
from sundog.runtime.host.python import module_command
from sundog.runtime.wire.records import fingerprint
from sundog.runtime.wire.sockets import connected
from sundog.runtime.worker.forks import Forks
from sundog.runtime.worker.life import ChildProcess
from sundog.runtime.worker.messages import WORKER_MESSAGES


class Facts(NamedTuple):
    """Facts about a replica's actor before an engine starts."""

    host: str
    node: str
    """Ray's id of the node."""
    process: int
    """Id of Ray's own process, from which engines are forked."""
    versions: tuple[tuple[str, str], ...]
    refusal: str | None
    """Reason why no engine can run there, if so."""


class EngineActor:
    """Ray actor that runs a fork server: `module` is its module, `orders` are the server's, `folder` is its
    working folder.

    Ray calls it in the process's main thread, to which the fork server is bound.
    """

    def __init__(self, module: str, orders: bytes, folder: str) -> None:
        with suppress(OSError):  # paths are whole where it is not there
            os.chdir(folder)
        if find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        self._forks = Forks(module_command(module), orders)
        self._engines: dict[int, ChildProcess] = {}

    def facts(self) -> Facts:
        """Return the node and versions, once the fork server has imported everything."""
        refusal = None
        try:
            trio.run(self._forks.ready)
        except ConfigError as error:
            refusal = str(error)
        node = ray.get_runtime_context().get_node_id()
        return Facts(
            ray.util.get_node_ip_address(), node, process=os.getpid(), versions=versions(), refusal=refusal
        )

    def begin(self, replica: int, host: str, port: int, secret: bytes) -> int:
        """Start an engine process with a link to the server at this address; return its id."""

        async def begun() -> ChildProcess:
            with await connected((host, port), WORKER_MESSAGES, secret) as link:
                return await self._forks.fork(replica, link)

        child = trio.run(begun)
        self._engines[child.process] = child
        return child.process

    def kill(self, process: int) -> None:
        """End an engine process at once, unless it has ended."""
        if process in self._engines:
            self._engines[process].kill()

    def reap(self, process: int) -> str:
        """Return how an engine process ended, in words; it is killed if that takes long."""
        if process not in self._engines:
            return "ended with the process of Ray that it was forked from"
        return trio.run(self._engines.pop(process).ended)


def versions() -> tuple[tuple[str, str], ...]:
    """Return the versions that must be the same at both ends, by name."""
    try:
        ours = version("sundog")
    except PackageNotFoundError:
        ours = "that is not installed"
    python = ".".join(platform.python_version_tuple()[:2])
    return ("Sundog", ours), ("Python", python), ("messages", fingerprint(WORKER_MESSAGES).hex())


def kill_process(process: int) -> None:
    """End a process of this node at once, unless it has ended."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
