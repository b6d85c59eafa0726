"""Fork server: a process that has imported everything, and forks an engine in milliseconds.

Importing torch and transformers takes seconds; a fork of a process that has done so needs no import, and
shares the memory. It runs no event loop and computes nothing, so that no other thread runs at a fork.
Requests come over a socket as `REQUEST`, answers go back as `ANSWER`:

| request | number | answer |
|---|---|---|
| FORK, with a socket for the new process | the replica | its process id |

The first message is sent without a request: READY when everything is imported, or REFUSED with a text.

Law: a forked process is a child of the requesting process, and outlives the fork server.
"""

import gc
import os
import socket
import struct
from collections.abc import Callable

from sundog.runtime.worker.life import fork_for

REQUEST = struct.Struct("<ci")
ANSWER = struct.Struct("<ci")
FORK, READY, REFUSED = b"F", b"Y", b"N"

Run = Callable[[int, socket.socket], None]
"""Main function of an engine process, called with its replica and its end of the link."""


def serve_forks(control: socket.socket, run: Run, name: str = "sundog engine") -> None:
    """Fork on request, until the requesting process is gone. Forks collect garbage, even if this process
    does not.
    """
    gc.freeze()  # or the first collection of each fork would copy all that is shared
    gc.enable()
    asker = os.getppid()
    control.sendall(ANSWER.pack(READY, os.getpid()))
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, REQUEST.size, 1)
        if not request:
            return
        _, replica = REQUEST.unpack(request)
        _fork(control, asker, replica, descriptors[0], run, name)
        os.close(descriptors[0])


def refuse(control: socket.socket, why: str) -> None:
    """Send a line to the requesting process: why no engine can start."""
    text = why.encode(errors="replace")
    control.sendall(ANSWER.pack(REFUSED, len(text)) + text)


def _fork(control: socket.socket, asker: int, replica: int, descriptor: int, run: Run, name: str) -> None:
    def live() -> None:
        control.close()
        os.set_inheritable(descriptor, False)
        run(replica, socket.socket(fileno=descriptor))

    fork_for(asker, f"{name} {replica}", live, lambda process: control.sendall(ANSWER.pack(FORK, process)))
