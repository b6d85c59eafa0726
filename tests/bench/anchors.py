"""What the streams of `bench door` cost where a framework serves them and nothing else."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.door_load import Price, priced

APP = str(Path(__file__).with_name("anchor_app.py"))


@dataclass(frozen=True, slots=True)
class Anchor:
    """One that is running."""

    url: str
    pid: int


@contextmanager
def running(python: str, framework: str, step_s: float) -> Iterator[Anchor | str]:
    """It, or why it does not run."""
    command = [python, APP, framework, f"{step_s:.6f}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        said = process.stdout.readline().strip()
        yield Anchor(said, process.pid) if re.fullmatch(r"http://[\d.:]+", said) else said
    finally:
        process.kill()
        process.wait()


def anchored(door: Price, python: str) -> None:
    """Print what the door's streams cost, and what as many cost elsewhere at the same pace."""
    print(f"\n{door.num_streams} streams, a token every {door.pace_s * 1e3:.1f} ms")
    print(
        f"{'':24} {'us a token':>10} {'ms a request':>12} {'gaps p50':>8} {'p99':>8} {'last first token':>16}"
    )
    show("Sundog, with its engine", door)
    for name, framework, runs_in in (
        ("Quart, Hypercorn, Trio", "quart", sys.executable),
        ("FastAPI, uvicorn, uvloop", "fastapi", python),
    ):
        with running(runs_in, framework, door.pace_s) as anchor:
            if isinstance(anchor, str):
                print(f"{name:24} left out: {anchor or 'it did not start'}", flush=True)
            else:
                show(name, priced(anchor, door.num_streams, door.num_tokens))


def show(name: str, price: Price) -> None:
    print(
        f"{name:24} {price.token_s * 1e6:10.1f} {price.request_s * 1e3:12.2f} {price.gap_s(0.5) * 1e3:8.1f}"
        f" {price.gap_s(0.99) * 1e3:8.1f} {price.many.first_s * 1e3:13.0f} ms",
        flush=True,
    )
