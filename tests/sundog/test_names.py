"""Imports: every module exists once, however it is imported and whatever is in the user's folder."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import sundog
from tests.test_layers import ROOT, imports, sources

USERS_FILES = ("sim.py", "actors.py", "runtime.py", "tests.py")
SCRIPT = """
import sim, actors, runtime
import sundog
run = sundog.replay({trace!r}, model="llama-3.1-8b", gpu="h100", limit=5)
assert sim.x == actors.x == runtime.x == 1
print(run.requests.num_rows)
"""


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_replay_works_beside_files_of_any_name(tmp_path: Path) -> None:
    """The script imports its own `sim`, which is not ours."""
    for name in USERS_FILES:
        (tmp_path / name).write_text("x = 1\n")
    trace = str(ROOT / "traces" / "chat-poisson-2rps-5min.jsonl.gz")
    (tmp_path / "study.py").write_text(SCRIPT.format(trace=trace))
    done = python(tmp_path, "study.py")
    assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr


@pytest.mark.parametrize("folder", ["actors", "runtime", "sim"])
def test_a_folder_is_not_imported_by_itself(folder: str) -> None:
    """Or its modules would exist twice, with two classes of each name."""
    done = python(ROOT, "-c", f"import {folder}")
    assert done.returncode == 1
    reason = f"{folder} is a folder of Sundog's source: import sundog.{folder}"
    assert done.stderr.endswith(f"ImportError: {reason}\n")


@pytest.mark.parametrize("folder", ["actors", "runtime", "sim", "sundog"])
def test_no_file_imports_by_the_name_of_a_folder(folder: str) -> None:
    """Inside functions, too."""
    for file in sources(folder):
        tops = {module.split(".")[0] for module, _ in imports(file)}
        assert not tops & {"actors", "runtime", "sim"}, file


@pytest.mark.parametrize("name", sundog.__all__)
def test_a_public_name_is_there(name: str) -> None:
    """And the page of the package names it."""
    assert getattr(sundog, name) is not None
    assert sundog.__doc__ is not None and name in sundog.__doc__
    assert name in dir(sundog)


PAGES = ("README.md", "docs/python.md", "docs/policies.md", "docs/routing.md", "docs/fleets.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_public_name_of_a_page_exists(page: str) -> None:
    """`sundog.x` is a public name, or one of the folders."""
    text = (ROOT / page).read_text(encoding="utf-8")
    names = set(re.findall(r"(?<![\w/.@-])sundog\.(\w+)\b(?!\.(?:toml|md|py)\b)", text))
    assert not names - set(sundog.__all__) - {"actors", "runtime", "sim"}


@pytest.mark.parametrize("name", ["PolicyError", "RunError", "TraceError"])
def test_every_error_is_a_config_error(name: str) -> None:
    assert issubclass(getattr(sundog, name), sundog.ConfigError)
