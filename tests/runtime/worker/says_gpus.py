"""`python -m tests.runtime.worker.says_gpus REPLICAS RANKS DESCRIPTOR PARENT`: engines that print their
GPUs.
"""

import os
import socket
import sys
from functools import partial

from sundog.runtime.host.devices import VISIBLE, gpus_of, on_own_gpus
from sundog.runtime.worker.fork_server import serve_forks
from sundog.runtime.worker.life import begin_life


def say(replica: int, connected: socket.socket) -> None:
    """The life of such an engine."""
    connected.sendall(os.environ[VISIBLE].encode())
    connected.close()


def main(replicas: int, ranks: int, descriptor: int, parent: int) -> None:
    """Be what they are forked from."""
    begin_life("says gpus", parent)
    gpus = gpus_of(replicas, ranks, os.environ.get(VISIBLE), None)
    with socket.socket(fileno=descriptor) as control:
        serve_forks(control, partial(on_own_gpus, say, gpus))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
