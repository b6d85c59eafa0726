"""Releases: changes of `make release`, announced and made, and checks of `make wheels`."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sundog.fast import MODULES
from tests.test_layers import ROOT
from tools.wheels import DATA, WheelError, look_into, python_of

PROJECT = '[project]\nname = "sundog"\nversion = "0.2.0"\n'
CHANGES = "# Changelog\n\n## Unreleased\n\n- `serve`: one thing.\n\n## 0.2.0\n\n- older\n"


def git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a project and a changelog, committed."""
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "config", "user.name", "someone")
    git(tmp_path, "config", "user.email", "someone@example.com")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "begin")
    return tmp_path


def release(root: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tools.release", "--root", str(root), "--date", "2026-12-01", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_a_release_is_dry_unless_it_is_asked_for(repository: Path) -> None:
    """It shows both changes, and makes none."""
    done = release(repository, "0.3.0")
    assert done.returncode == 0, done.stderr
    assert '+version = "0.3.0"' in done.stdout and "+## 0.3.0 (2026-12-01)" in done.stdout
    assert (repository / "pyproject.toml").read_text() == PROJECT and not git(repository, "tag")


def test_a_release_writes_commits_and_tags(repository: Path) -> None:
    """What was unreleased stands under the version; the next changes have their heading."""
    assert release(repository, "0.3.0", "--do").returncode == 0
    assert git(repository, "tag").strip() == "v0.3.0" and not git(repository, "status", "--porcelain")
    assert git(repository, "log", "-1", "--format=%s").strip() == "release: 0.3.0"
    assert 'version = "0.3.0"' in git(repository, "show", "v0.3.0:pyproject.toml")
    text = (repository / "CHANGELOG.md").read_text()
    assert text.split("## ")[1:3] == ["Unreleased\n\n", "0.3.0 (2026-12-01)\n\n- `serve`: one thing.\n\n"]
    again = release(repository, "0.4.0")
    assert again.returncode == 1 and "nothing under Unreleased" in again.stderr


@pytest.mark.parametrize(
    ("version", "words"), [("0.2.0", "not above 0.2.0"), ("0.1.9", "not above"), ("1.0", "three numbers")]
)
def test_a_version_that_is_none_is_refused(version: str, words: str, repository: Path) -> None:
    """In one line."""
    done = release(repository, version)
    assert done.returncode == 1 and words in done.stderr and len(done.stderr.splitlines()) == 1


def test_what_is_not_committed_is_not_released(repository: Path) -> None:
    """The file is named, and nothing is written."""
    (repository / "pyproject.toml").write_text(PROJECT + "# mine\n")
    done = release(repository, "0.3.0", "--do")
    assert done.returncode == 1 and "pyproject.toml is changed" in done.stderr
    assert not git(repository, "tag") and (repository / "CHANGELOG.md").read_text() == CHANGES


def wheel(path: Path, *, without: str = "") -> Path:
    """A wheel with all that one must have, but for one file."""
    compiled = [f"{module[:-3]}.cpython-311-x86_64-linux-gnu.so" for module in MODULES]
    names = [*MODULES, *compiled, *DATA, "sundog/compiled__mypyc.cpython-311-x86_64-linux-gnu.so"]
    names.append("sundog/runtime/native/libsundog-avx2.so")
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            if name != without:
                archive.writestr(name, "")
    return path


def test_a_wheel_that_lacks_something_is_found_out(tmp_path: Path) -> None:
    """A compiled module, their library, a kernel, data; a whole one passes."""
    look_into(wheel(tmp_path / "whole.whl"))
    first = f"{MODULES[0][:-3]}.cpython-311-x86_64-linux-gnu.so"
    for number, (lacks, words) in enumerate(
        [
            (first, "lacks 1 compiled modules"),
            ("sundog/compiled__mypyc.cpython-311-x86_64-linux-gnu.so", "lacks the library"),
            (DATA[0], f"lacks {DATA[0]}"),
            (MODULES[3], f"lacks {MODULES[3]}"),
        ]
    ):
        with pytest.raises(WheelError, match=words):
            look_into(wheel(tmp_path / f"{number}.whl", without=lacks))


def test_a_python_is_found_by_its_version() -> None:
    """The one that runs this, if it has headers; none of a version that there is not."""
    found = python_of("{}.{}".format(*sys.version_info[:2]))
    if found is not None:
        ask = "import sys; print(*sys.version_info[:2])"
        said = subprocess.run([found, "-c", ask], capture_output=True, text=True).stdout
        assert said.split() == [str(each) for each in sys.version_info[:2]]
    assert python_of("3.99") is None
