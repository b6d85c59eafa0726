"""`make gpu`: all tests on the GPU, then the benchmark, in at most eight minutes, without installing
anything.

Torch, transformers and pytest are all it takes; pytest-xdist and pytest-timeout are used where they are. What
comes of it is one JSON, written anew with every figure, which says of everything that failed why. Exits 2 in
one line where nothing can run, 1 if anything fails. `--out FOLDER` is where the JSON goes, `--wheels FOLDER`
installs the wheels there into a folder of its own first.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from tests.gpu.outcomes import VARIABLE

ROOT = Path(__file__).resolve().parents[2]
MOST_S = 465
MOST_TESTS_S = 200
MOST_TEST_S = 90
NEEDED = ("numpy", "psutil", "pytest", "safetensors", "torch", "transformers")
TESTS = (
    "-m",
    "pytest",
    "-c",
    "tests/gpu/pytest.ini",
    "--rootdir=.",
    "--noconftest",
    "-p",
    "tests.gpu.conftest",
    "-p",
    "tests.gpu.outcomes",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make gpu")
    parser.add_argument("--wheels", metavar="FOLDER", type=Path, help="wheels to install, without a network")
    parser.add_argument("--out", metavar="FOLDER", type=Path, help="where the JSON goes")
    args = parser.parse_args()
    if reason := hindrance():
        print(f"make gpu: {reason}", file=sys.stderr)
        return 2
    begin_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sundog-gpu-") as folder:
        outcomes = Path(folder, "outcomes.jsonl")
        env = os.environ | {"PYTHONPATH": os.pathsep.join((folder, str(ROOT))), "HF_HUB_OFFLINE": "1"}
        env |= {"PYTHONUNBUFFERED": "1", VARIABLE: str(outcomes)}
        if args.wheels is not None:
            install(args.wheels, folder)
        failed = run([*TESTS, *at_once(), "tests/gpu"], env, MOST_TESTS_S)
        left_s = MOST_S - (time.monotonic() - begin_s)
        bench = [
            "-m",
            "tests.bench.bench_gpu",
            "--most-seconds",
            f"{left_s - 10:.0f}",
            "--tests",
            str(outcomes),
        ]
        bench += [] if args.out is None else ["--folder", str(args.out)]
        failed |= run(bench, env, left_s)
    return int(failed)


def hindrance() -> str | None:
    """Why nothing can run, if nothing can."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        return f"{sys.executable} lacks {', '.join(missing)}: give make gpu PYTHON=... one that has them"
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA device, and this is for one"
    return None


def at_once() -> list[str]:
    """Several tests at once, each for a limited time, as far as pytest's plugins are there."""
    options = []
    if find_spec("xdist"):
        options += ["-n", str(max(1, min(8, (os.cpu_count() or 1) // 2))), "--dist", "worksteal"]
    if find_spec("pytest_timeout"):
        options += ["--timeout", str(MOST_TEST_S), "--timeout-method", "thread"]
    return options


def install(wheels: Path, folder: str) -> None:
    """Beside what is there, which stays as it is."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", folder]
    subprocess.run([*command, *map(str, sorted(wheels.glob("*.whl")))], check=True)


def run(arguments: list[str], env: dict[str, str], most_s: float) -> bool:
    """Whether it fails, or takes too long; then it ends with all that it began."""
    child = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, env=env, start_new_session=True)
    try:
        return child.wait(max(most_s, 1.0)) != 0
    except subprocess.TimeoutExpired:
        print(f"make gpu: {' '.join(arguments[:2])} took more than {most_s:.0f} s", file=sys.stderr)
        return True
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


if __name__ == "__main__":
    sys.exit(main())
