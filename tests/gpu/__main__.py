"""`make gpu`: every test on the GPU, then the benchmark, in at most eight minutes, on a machine that is bare.

Exits 2 in one line where there is no GPU, 1 if a test fails. `--wheels FOLDER` installs the wheels there into
a folder of its own first, for the tests that need more than torch, transformers and pytest.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_S = 470
MOST_TESTS_S = 230


def main() -> int:
    parser = argparse.ArgumentParser(prog="make gpu")
    parser.add_argument("--wheels", metavar="FOLDER", help="wheels to install, without a network")
    wheels = parser.parse_args().wheels
    if reason := without_gpu():
        print(f"make gpu: {reason}", file=sys.stderr)
        return 2
    begin_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sundog-gpu-") as folder:
        env = os.environ | {"PYTHONPATH": os.pathsep.join((folder, str(ROOT))), "HF_HUB_OFFLINE": "1"}
        if wheels is not None:
            install(Path(wheels), folder)
        tests = ["-m", "pytest", "-c", "tests/gpu/pytest.ini", "--rootdir=.", "--noconftest", "tests/gpu"]
        failed = run(tests, env, MOST_TESTS_S)
        left_s = MOST_S - (time.monotonic() - begin_s)
        failed |= run(["-m", "tests.bench.bench_gpu", "--most-seconds", f"{left_s - 10:.0f}"], env, left_s)
    return int(failed)


def without_gpu() -> str | None:
    """Why nothing can run, if nothing can."""
    try:
        import torch
    except ImportError:
        return f"{sys.executable} has no torch: give make PYTHON=... one that has"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA device, and this is for one"
    return None


def install(wheels: Path, folder: str) -> None:
    """Beside what is there, which stays as it is."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", folder]
    subprocess.run([*command, *map(str, sorted(wheels.glob("*.whl")))], check=True)


def run(arguments: list[str], env: dict[str, str], most_s: float) -> bool:
    """Whether it fails, or takes too long."""
    try:
        return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=env, timeout=most_s).returncode != 0
    except subprocess.TimeoutExpired:
        print(f"make gpu: {' '.join(arguments[:2])} took more than {most_s:.0f} s", file=sys.stderr)
        return True


if __name__ == "__main__":
    sys.exit(main())
