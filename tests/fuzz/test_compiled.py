"""The compiled simulator decides as the plain one does, figure for figure."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sundog.actors.core import batch

ROOT = Path(__file__).parents[2]
PARTS = ("sundog", "tests/fuzz", "tests/core", "docs")
NUM_CONFIGURATIONS = 60
IS_COMPILED = not str(batch.__file__).endswith(".py")


def digests(root: Path) -> list[str]:
    """The digests of the same configurations in a process whose sources are those of a folder."""
    command = ["-m", "tests.fuzz", "--digests", "--configurations", str(NUM_CONFIGURATIONS), "--seed", "4000"]
    done = subprocess.run([sys.executable, *command], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if len(line.split()) == 2]


@pytest.mark.slow(reason="each configuration is replayed twice in both trees")
@pytest.mark.skipif(not IS_COMPILED, reason="make fast has not compiled this tree: there is one simulator")
def test_compiled_and_plain_give_equal_bytes(tmp_path: Path) -> None:
    """The plain one is a copy of the sources alone."""
    for part in PARTS:
        ignored = shutil.ignore_patterns("*.so", "__pycache__", "assets")
        shutil.copytree(ROOT / part, tmp_path / part, ignore=ignored)
    (tmp_path / "tests" / "__init__.py").touch()
    plain, compiled = digests(tmp_path), digests(ROOT)
    assert len(plain) == NUM_CONFIGURATIONS
    assert plain == compiled
