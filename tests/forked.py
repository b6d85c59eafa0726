"""Forked process with the methods of `subprocess.Popen` that tests use."""

import os
import select
import signal
import subprocess
from typing import IO

from tests.patience import START_S


class Forked:
    """A process that was forked, as `subprocess.Popen` shows one."""

    def __init__(self, pid: int, stderr: IO[str] | None, stdin: IO[bytes] | None = None) -> None:
        self.pid, self.stderr, self.stdin = pid, stderr, stdin
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._reap(os.WNOHANG)

    def wait(self, timeout: float = START_S) -> int:
        if self.returncode is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                ended, _, _ = select.select([descriptor], [], [], timeout)
            finally:
                os.close(descriptor)
            if not ended:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        code = self._reap(0)
        assert code is not None
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _reap(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode
