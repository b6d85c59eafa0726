"""Server in a process of its own, and a stream of it, for tests of faults."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]  # ships no types

from tests import warm
from tests.patience import START_S, STOP_S
from tests.processes import below

PYTHON = os.environ.get("SUNDOG_PYTHON", sys.executable)
"""What runs servers, where the tests themselves run in an environment without one."""
Process = subprocess.Popen[str] | warm.Forked
EMULATED = ("sundog", "emulate", "--port", "0", "--gpu", "h100", "--model", "qwen3-8b")


@dataclass
class Live:
    """A server that is running; what it says on stderr is kept."""

    process: Process
    is_real: bool = True
    """Whether a model answers, not canned text."""
    url: str = ""
    said: list[str] = field(default_factory=list)
    said_s: list[float] = field(default_factory=list)
    """When each line came, by `time.monotonic`."""
    serves: threading.Event = field(default_factory=threading.Event)

    def listen(self) -> None:
        """Keep what it says; the first URL is its own."""
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                found = re.search(r"https?://[\w.:]+", line)
                if found and not self.url:
                    self.url = found.group()
                    self.serves.set()
                else:
                    self.said_s.append(time.monotonic())
                    self.said.append(line)
        self.serves.set()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def hurt(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def health(self) -> httpx.Response:
        return httpx.get(f"{self.url}/health", timeout=START_S)

    def until_health(self, status: int) -> float:
        """Wait until /health has this status; how many seconds it took."""
        start_s = time.monotonic()
        while self.health().status_code != status:
            assert time.monotonic() - start_s < START_S, f"/health was never {status}"
            time.sleep(0.01)
        return time.monotonic() - start_s

    def until_it_says(self, words: str) -> None:
        """Wait for a line of stderr that has these words."""
        start_s = time.monotonic()
        while not any(words in line for line in self.said):
            assert time.monotonic() - start_s < START_S, f"no {words!r} in {self.said}"
            time.sleep(0.01)

    def assert_sound(self) -> None:
        """It runs, and nothing in it raised; with `--debug` it verifies queues and blocks when idle."""
        assert self.process.poll() is None, self.said
        assert not [line for line in self.said if "Traceback" in line or "Error" in line], self.said

    def complete(self, prompt: str | list[int] = "Once upon a time", **fields: Any) -> httpx.Response:
        body = {"prompt": prompt, "temperature": 0, **fields}
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=START_S)

    def below(self, name: str) -> list[psutil.Process]:
        """Its processes that are called so, as `ps` shows them, once there are any."""
        start_s = time.monotonic()
        while not (found := below(self.process.pid, re.escape(name))):
            assert time.monotonic() - start_s < START_S, f"no {name!r}"
            time.sleep(0.01)
        return found

    def until_replaced(self, engines: list[psutil.Process]) -> float:
        """Wait until others serve in the place of engine processes that end; how many seconds it took.

        /health is 503 in between for so short a time that who polls it may miss that.
        """
        start_s = time.monotonic()
        while set(others := self.below("sundog engine ")) & set(engines) or len(others) < len(engines):
            assert time.monotonic() - start_s < START_S, f"{engines} were not replaced"
            time.sleep(0.01)
        self.until_health(200)
        return time.monotonic() - start_s

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> int:
        """The exit code, when the process has ended."""
        return self.process.wait(STOP_S)


class Stream(threading.Thread):
    """Reads a streamed completion to its end: its events and when each came."""

    def __init__(self, server: Live, **fields: Any) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._body = {"prompt": "Once upon a time", "temperature": 0, "stream": True, **fields}
        self.events: list[str] = []
        self.times_s: list[float] = []
        self.accepted, self.begun = threading.Event(), threading.Event()
        self.start()

    def run(self) -> None:
        try:
            self._read()
        finally:
            self.accepted.set()
            self.begun.set()

    def _read(self) -> None:
        url = f"{self._server.url}/v1/completions"
        with httpx.stream("POST", url, json=self._body, timeout=START_S) as response:
            response.raise_for_status()
            self.accepted.set()
            for line in response.iter_lines():
                if line.startswith("data: "):
                    self.times_s.append(time.monotonic())
                    self.events.append(line.removeprefix("data: "))
                    self.begun.set()

    def whole(self) -> list[Any]:
        """All its events as objects, but for the last, which must be [DONE]."""
        self.join(START_S)
        assert not self.is_alive() and self.events[-1] == "[DONE]", self.events[-3:]
        return [json.loads(event) for event in self.events[:-1]]

    @property
    def text(self) -> str:
        chunks = [event for event in self.whole() if "choices" in event]
        return "".join(chunk["choices"][0]["text"] for chunk in chunks)

    @property
    def longest_gap_s(self) -> float:
        return max(later - sooner for sooner, later in zip(self.times_s, self.times_s[1:], strict=False))


@contextmanager
def live(
    *command: str, file_limit: int | None = None, descriptor_limit: int | None = None, afresh: bool = False
) -> Iterator[Live]:
    """`python -m command`, which says its URL; a process that imports everything itself if `afresh`.

    No file of it may grow beyond `file_limit` bytes, and it has at most `descriptor_limit` open.
    """

    def limit() -> None:
        if file_limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
        if descriptor_limit is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptor_limit, descriptor_limit))

    is_limited = file_limit is not None or descriptor_limit is not None
    process: Process
    if warm.can() and sys.executable == PYTHON and not (is_limited or afresh):
        process = warm.popen(*command)
    else:
        process = subprocess.Popen(
            [PYTHON, "-m", *command], stderr=subprocess.PIPE, text=True, preexec_fn=limit
        )
    server = Live(process, is_real="emulate" not in command)
    reader = threading.Thread(target=server.listen, daemon=True)
    reader.start()
    try:
        assert server.serves.wait(START_S) and server.url, f"the server said {server.said}"
        yield server
    finally:
        process.kill()
        process.wait()
        reader.join(STOP_S)
