"""`sundog serve` in a process of its own, as its clients and its operator meet it."""

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

START_S = 120.0
STOP_S = 30.0
EMULATED = ("--simulate", "h100", "--model", "qwen3-8b", "--debug")
EMBEDDED = ("--num-gpu-blocks", "256", "--debug")


@dataclass
class Server:
    """A server that is ready; `remarks` grows with the lines of its stderr."""

    process: subprocess.Popen[str]
    port: int
    remarks: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def until_it_says(self, words: str) -> None:
        """Wait for a line of stderr that has these words."""
        deadline_s = time.monotonic() + STOP_S
        while not any(words in line for line in self.remarks):
            assert time.monotonic() < deadline_s, f"no {words!r} in {self.remarks}"
            time.sleep(0.01)

    def ended(self) -> int:
        """The exit code, when the process has ended."""
        return self.process.wait(STOP_S)

    def assert_sound(self) -> None:
        """It runs, and nothing in it raised: `--debug` verifies queues and blocks when it falls idle."""
        assert self.process.poll() is None, self.remarks
        assert not [line for line in self.remarks if "Traceback" in line or "Error" in line], self.remarks


@contextmanager
def serving_process(*arguments: str, prefix: tuple[str, ...] = ()) -> Iterator[Server]:
    """A server on a free port; whatever happens, its process ends."""
    command = [*prefix, sys.executable, "-m", "sundog", "serve", "--port", "0", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    watchdog = threading.Timer(START_S, process.kill)
    watchdog.start()
    try:
        assert process.stderr is not None
        first = process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", first)
        assert found, f"the server said {first!r} {process.stderr.read()!r}"
        server = Server(process, int(found.group(1)))
        reader = threading.Thread(target=server.remarks.extend, args=(process.stderr,))
        reader.start()
        yield server
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        if process.stderr is not None:
            reader.join()
            process.stderr.close()
