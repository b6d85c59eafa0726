"""Ray cluster of a command: an existing one, or a local one that starts and ends with it.

Law: an existing cluster is left as it was found; of a local one nothing remains, however its command ends
(`keeper.py`). A local one needs a secret token.
"""

import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from sundog.actors.config import ConfigError
from sundog.runtime.host.python import module_command

log = logging.getLogger("sundog.ray")

OURS = Path(__file__).parents[3]
"""Folder from which this process imports Sundog."""
LOCAL, ANY = "local", "auto"
REACH_S = 5.0
FOLDER_CHARACTERS = 40
"""Maximum number of characters in the path of the local cluster's folder: its sockets' paths are 60 longer,
and may have 107.
"""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Connected cluster; `host` is this machine's address there."""

    host: str
    is_ours: bool

    def num(self, resource: str) -> float:
        """Return the amount of a resource on all nodes."""
        import ray

        return float(ray.cluster_resources().get(resource, 0.0))

    def fits(self, demand: Mapping[str, float]) -> bool:
        """Return whether an idle node would have enough."""
        import ray

        return any(
            all(node["Resources"].get(name, 0.0) >= number for name, number in demand.items())
            for node in ray.nodes()
            if node["Alive"]
        )


@contextmanager
def joined(address: str | None, num_cpus: int) -> Iterator[Cluster]:
    """Connect to the cluster at `address`, or start a local one of `num_cpus` if none is given.

    Raises ModuleNotFoundError without Ray, ConfigError if there is no such cluster, or one of another Ray
    version.
    """
    if find_spec("ray") is None:
        raise ModuleNotFoundError("No module named 'ray'", name="ray")
    if address is None and os.environ.get("RAY_ADDRESS", LOCAL) != LOCAL:
        address = os.environ["RAY_ADDRESS"]
        log.info("the Ray cluster is %s, as RAY_ADDRESS says", address)
    if address is None:
        with _begun(num_cpus) as begun, _connected(begun, "ray") as host:
            yield Cluster(host, is_ours=True)
    else:
        said = f"ray:{address}"
        _check_reached(address, said)
        with _connected(address, said) as host:
            yield Cluster(host, is_ours=False)


@contextmanager
def _begun(num_cpus: int) -> Iterator[str]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    short = tempfile.gettempdir() if len(tempfile.gettempdir()) <= FOLDER_CHARACTERS - 19 else "/tmp"
    folder = tempfile.mkdtemp(prefix="sundog-ray-", dir=short)
    keeper = subprocess.Popen(
        module_command("sundog.runtime.ray.keeper", folder, str(num_cpus)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,  # Ctrl-C is for the command
    )
    assert keeper.stdin is not None and keeper.stdout is not None
    try:
        said = keeper.stdout.readline().strip()
        if not said or said.startswith("error: "):
            why = said.removeprefix("error: ") or "its first process ended at once"
            raise ConfigError(f"--on ray: no cluster begins here: {why}")
        yield said
    finally:
        with suppress(BrokenPipeError):
            keeper.stdin.close()
        keeper.wait()
        keeper.stdout.close()


@contextmanager
def _connected(address: str, said: str) -> Iterator[str]:
    """Connect as a driver of the cluster; yield this machine's address there. SIGTERM handling is unchanged.

    Ray's output, some of it on stdout, goes to stderr.
    """
    import ray  # its environment must have been set before

    on_sigterm = signal.getsignal(signal.SIGTERM)
    with redirect_stdout(sys.stderr):
        try:
            try:
                with chdir(OURS):  # Ray has its processes import from the driver's current folder first
                    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            except (ray.exceptions.RayError, ConnectionError, OSError, RuntimeError, ValueError) as error:
                why = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
                raise ConfigError(f"--on {said}: {why.strip()}") from error
            signal.signal(signal.SIGTERM, on_sigterm)
            yield ray.util.get_node_ip_address()
        finally:
            ray.shutdown()


def _check_reached(address: str, said: str) -> None:
    """Raise at once for an address without listener: Ray would retry for half a minute."""
    if address == ANY:
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()
    except ValueError:
        raise ConfigError(f"RAY_ADDRESS is {address}: it should be HOST:PORT or auto") from None
    except OSError as error:
        raise ConfigError(f"--on {said}: no Ray cluster is there: {error.strerror or error}") from None
