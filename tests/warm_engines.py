"""Pre-imported processes that engines are forked from, so that servers in tests start engines at once.

A server forked from a process that has imported torch has it in memory, and so has a fork of that server. The
new process is a child of the server, has the arguments, the input and the descriptor that `subprocess` would
give it, and runs the same module; only importing is not done again.
"""

import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import trio

from tests.forked import Forked


def fork_engines() -> None:
    """Let servers in this process fork what their engines are forked from; call it before they start."""
    from sundog.runtime.worker import forks

    forks.subprocess = SimpleNamespace(Popen=_started, PIPE=subprocess.PIPE)  # type: ignore[assignment]


def _started(
    command: Sequence[str], *, stdin: int, pass_fds: Sequence[int], process_group: int
) -> "subprocess.Popen[bytes] | Forked":
    """A module in a Python of its own (`module_command`, or `python -m`), as `subprocess` starts it.

    It is started by `subprocess` where a fork would find threads or a running loop.
    """
    is_alone = threading.active_count() == 1 and not trio.lowlevel.in_trio_run()
    words = _of_a_module(command)
    if not is_alone or not words:
        options: dict[str, Any] = {"pass_fds": pass_fds, "process_group": process_group}
        return subprocess.Popen(command, stdin=stdin, **options)
    reads, writes = os.pipe()
    sys.stderr.flush()
    if pid := os.fork():
        os.close(reads)
        return Forked(pid, None, os.fdopen(writes, "wb"))
    code = 1
    try:
        os.setpgid(0, process_group)
        _leave(reads, pass_fds)
        sys.argv = list(words)
        sys.modules.pop(sys.argv[0], None)  # else `runpy` warns that it is there
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        code = 0
    except BaseException:  # noqa: BLE001  # as Python itself ends
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _of_a_module(command: Sequence[str]) -> Sequence[str]:
    """Return the module that a command runs, and its arguments; nothing if it runs no module."""
    from sundog.runtime.host.python import module_command

    for begins in (module_command(""), [sys.executable, "-m", ""]):
        if list(command[: len(begins) - 1]) == begins[:-1]:
            return command[len(begins) - 1 :]
    return ()


def _leave(stdin: int, kept: Sequence[int]) -> None:
    """Keep of the server what a new program keeps: three streams, what it is passed, what is ignored."""
    os.dup2(stdin, 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  # for as long as it lives
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor not in kept:
            try:
                os.close(descriptor)
            except OSError:  # that of the listing itself
                continue
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
