"""Wheels for each installed Python from 3.11 to 3.14: `make wheels`, or ONLY=3.11 for one.

Each is built in isolation from a copy of the tracked files. Its compiled simulator, kernels and data are
checked. It is installed into an empty environment, and must replay a trace there with the same figures as the
source. Wheels are written to `dist/`.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from sundog.fast import MODULES, WHY_PLAIN

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
TRACE = ROOT / "traces" / "chat-poisson-2rps-5min.jsonl.gz"
REPLAY = ("replay", str(TRACE), "--limit", "20", "--json")
DATA = ("sundog/sim/hardware/models/llama-3.1-8b.json", "sundog/runtime/assets/sundog-tiny/config.json")
"""Two data files that every wheel must contain, as a sample."""


class WheelError(Exception):
    """Raised for a wheel that is incomplete or computes wrong results."""


def main() -> None:
    """Build, check, install and try a wheel for each Python; exit code 1 if one fails."""
    parser = argparse.ArgumentParser(prog="make wheels", description="Build and try wheels.")
    parser.add_argument("--only", choices=VERSIONS, help="one Python alone")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the wheels")
    asked = parser.parse_args()
    wanted = VERSIONS if asked.only is None else (asked.only,)
    pythons = {version: found for version in wanted if (found := python_of(version)) is not None}
    for version in wanted:
        if version not in pythons:
            print(f"Python {version} is not here: no wheel for it", file=sys.stderr)
    expected = replayed(Path(sys.executable))
    wrong = 0
    for version, python in pythons.items():
        try:
            with tempfile.TemporaryDirectory(prefix="sundog-wheel-") as folder:
                wheel = build(python, Path(folder))
                look_into(wheel)
                if installed(python, Path(folder), wheel) != expected:
                    raise WheelError(f"{wheel.name} replays with other figures than the source")
                asked.out.mkdir(parents=True, exist_ok=True)
                kept = shutil.copy2(wheel, asked.out / wheel.name)
        except (WheelError, subprocess.CalledProcessError) as error:
            wrong += 1
            print(f"Python {version}: {_why(error)}", file=sys.stderr)
        else:
            print(kept)
    sys.exit(1 if wrong or not pythons else 0)


def _why(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = f"{error.stdout or ''}{error.stderr or ''}".strip().splitlines()
        return f"{' '.join(map(str, error.cmd))[:120]}: {lines[-1] if lines else error.returncode}"
    return str(error)


def python_of(version: str) -> Path | None:
    """Return the interpreter of a version, from the path or pyenv; None if none has headers."""
    candidates = [shutil.which(f"python{version}")]
    homes = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*"))
    candidates += [str(home / "bin" / "python") for home in reversed(homes)]
    for each in filter(None, candidates):
        ask = "import sysconfig, os, sys; print(sys.version_info[:2]);"
        ask += " sys.exit(not os.path.exists(sysconfig.get_path('include') + '/Python.h'))"
        done = subprocess.run([each, "-c", ask], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip() == str(tuple(map(int, version.split(".")))):
            return Path(each)
    return None


def build(python: Path, folder: Path) -> Path:
    """Build a wheel of the tracked files in isolation, and return its path."""
    source = folder / "source"
    listed = _run("git", "ls-files", "-z", folder=ROOT).split("\0")
    for name in filter(None, listed):
        if name.startswith(("tests/", "traces/")) or not (ROOT / name).exists():
            continue
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
    _run(str(python), "-m", "venv", str(folder / "build"), folder=folder)
    pip = str(folder / "build" / "bin" / "pip")
    _run(pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(source), folder=folder)
    (made,) = folder.glob("*.whl")
    return made


def look_into(wheel: Path) -> None:
    """Raise WheelError unless a wheel contains every compiled module, their library, kernels and data."""
    names = set(zipfile.ZipFile(wheel).namelist())
    libraries = {name for name in names if name.endswith(".so")}
    kernels = {name for name in libraries if name.startswith("sundog/runtime/native/")}
    missing = [
        module
        for module in MODULES
        if not any(re.fullmatch(re.escape(module[:-3]) + r"\.[^/]*\.so", name) for name in libraries)
    ]
    if missing:
        plain = "" if f"sundog/{WHY_PLAIN}" not in names else f" ({WHY_PLAIN} says why)"
        raise WheelError(f"{wheel.name} lacks {len(missing)} compiled modules, such as {missing[0]}{plain}")
    if len(libraries - kernels) != len(MODULES) + 1:
        raise WheelError(f"{wheel.name} lacks the library that the compiled modules share")
    if not kernels and shutil.which("g++"):
        raise WheelError(f"{wheel.name} lacks the kernels of the engine")
    if absent := [name for name in (*MODULES, *DATA) if name not in names]:
        raise WheelError(f"{wheel.name} lacks {absent[0]}")


def installed(python: Path, folder: Path, wheel: Path) -> dict[str, object]:
    """Install a wheel into an empty environment, and return the figures of a replay there."""
    home = folder / "environment"
    _run(str(python), "-m", "venv", str(home), folder=folder)
    _run(str(home / "bin" / "pip"), "install", "--quiet", str(wheel), folder=folder)
    said = _run(str(home / "bin" / "sundog"), "--version", folder=folder)
    if not said.strip().endswith(", compiled"):
        raise WheelError(f"{wheel.name} says {said.strip()}")
    return replayed(home / "bin" / "python", folder)


def replayed(python: Path, folder: Path = ROOT) -> dict[str, object]:
    """Return the figures of a replay by that interpreter."""
    figures: dict[str, object] = json.loads(_run(str(python), "-m", "sundog", *REPLAY, folder=folder))
    return figures


def _run(*command: str, folder: Path) -> str:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
