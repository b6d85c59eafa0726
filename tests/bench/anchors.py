"""Servers that `bench door` compares with: that of another checkout, and frameworks alone."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.door_load import Price

APP = str(Path(__file__).with_name("anchor_app.py"))
START = "import sys; from sundog.__main__ import main; sys.exit(main())"


@dataclass(frozen=True, slots=True)
class Anchor:
    """One that is running."""

    name: str
    url: str
    pid: int


@contextmanager
def frameworks(python: str, step_s: float) -> Iterator[list[Anchor]]:
    """Those that give a token every `step_s`, but for one that does not run, of which a line is printed."""
    quart, fastapi = "Quart, Hypercorn, Trio", "FastAPI, uvicorn, uvloop"
    with (
        _running(quart, [sys.executable, APP, "quart", f"{step_s:.6f}"]) as first,
        _running(fastapi, [python, APP, "fastapi", f"{step_s:.6f}"]) as second,
    ):
        yield [each for each in (first, second) if each is not None]


@contextmanager
def checkout(folder: str, arguments: tuple[str, ...]) -> Iterator[list[Anchor]]:
    """The server of another checkout, by the same Python."""
    command, env = [sys.executable, "-c", START, *arguments], os.environ | {"PYTHONPATH": folder}
    with _running(
        f"{os.path.basename(folder)}, with its engine", command, cwd=folder, env=env, is_on_stderr=True
    ) as anchor:
        if anchor is None:
            sys.exit(f"the server of {folder} did not start")
        yield [anchor]


@contextmanager
def _running(
    name: str,
    command: list[str],
    *,
    cwd: str | None = None,
    env: dict[str, str] | None = None,
    is_on_stderr: bool = False,
) -> Iterator[Anchor | None]:
    streams = {"stderr" if is_on_stderr else "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, cwd=cwd, env=env, **streams)  # type: ignore[call-overload]
    lines = process.stderr if is_on_stderr else process.stdout
    try:
        said = ""
        for said in lines:
            if found := re.search(r"http://[\d.:]+", said):
                yield Anchor(name, found.group(), process.pid)
                return
        print(f"{name:24} left out: {said.strip() or 'it did not start'}", flush=True)
        yield None
    finally:
        process.kill()
        process.wait()


def show(names: list[str], found: list[Price]) -> None:
    """Print a line for each server."""
    door = found[0]
    print(f"\n{door.num_streams} streams, a token every {door.pace_s * 1e3:.1f} ms")
    columns = ("us a token", "ms a request", "gaps p50", "gaps p99", "last first token", "kB a stream")
    print(" " * 24, *columns)
    for name, price in zip(names, found, strict=True):
        print(
            f"{name:24} {price.token_s * 1e6:10.1f} {price.request_s * 1e3:12.2f}",
            f"{price.gap_s(0.5) * 1e3:8.1f} {price.gap_s(0.99) * 1e3:8.1f}",
            f"{price.many.first_s * 1e3:13.0f} ms {price.kb:11.0f}",
            flush=True,
        )
