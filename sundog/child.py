"""A server in a child process, for the duration of a measurement.

With the arguments `PARENT serve …` this module is `sundog serve …`, and stops when the process `PARENT` dies.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from sundog.actors.config import ConfigError
from sundog.runtime.host.python import module_command

START_S, STOP_S, ANSWER_S = 600.0, 30.0, 60.0
STEPS = "sundog:steps_total"


@contextmanager
def serving(
    model: str | None, scratch: Path, *options: str, command: Literal["serve", "emulate"] = "serve"
) -> Iterator[str]:
    """Start a server on a free port and yield its URL; raises ConfigError with its last line if it fails."""
    child = module_command("sundog.child", str(os.getpid()), command, *([model] if model else []))
    child += ["--port", "0", *options]
    log = scratch / "server.log"
    with log.open("w") as stderr:
        process = subprocess.Popen(child, stdout=subprocess.DEVNULL, stderr=stderr)
    try:
        yield _url(process, log)
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def counters(url: str) -> dict[str, float]:
    """Read the server's counters at /metrics, summed over its engines."""
    import httpx  # The server itself, which this module starts too, has no use for it.

    text = httpx.get(f"{url}/metrics", timeout=ANSWER_S).raise_for_status().text
    found: dict[str, float] = defaultdict(float)
    for name, value in re.findall(r"(?m)^([\w:]+)(?:{.*})? (\S+)$", text):
        found[name] += float(value)
    return found


def _url(process: "subprocess.Popen[bytes]", log: Path) -> str:
    begin_s = time.monotonic()
    while time.monotonic() - begin_s < START_S:
        said = log.read_text(errors="replace")
        if found := re.search(r"at (http://[\w.:\[\]]+)/v1", said):
            return found[1]
        if process.poll() is not None:
            last = said.strip().splitlines()[-1:] or ["nothing"]
            raise ConfigError(f"the server did not start; it said: {last[0].removeprefix('sundog: ')}")
        time.sleep(0.05)
    raise ConfigError(f"the server did not start within {START_S:g} s")


def main() -> None:
    """Run the command line in `sys.argv`, and stop when the parent dies."""
    from sundog.__main__ import main as run
    from sundog.runtime.worker.life import bind_to

    bind_to(int(sys.argv.pop(1)), signal.SIGTERM)
    run()


if __name__ == "__main__":
    main()
