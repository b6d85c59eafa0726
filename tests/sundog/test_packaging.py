"""What an installation holds: the base simulates, an extra is named when it is missing, data come along."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from runtime.native import build
from sundog import fast
from sundog.ends import EXTRAS, how_to_install

ROOT = Path(__file__).parents[2]
KV_EVENTS = '{"enable_kv_cache_events": true}'
TRACE = ROOT / "traces" / "chat-poisson-2rps-5min.jsonl.gz"
DATA = {".cpp", ".css", ".h", ".jinja", ".js", ".json", ".npz", ".safetensors", ".toml"}


def wheel(folder: Path, compiler: str | None) -> zipfile.ZipFile:
    """The wheel of a copy of the source, which stays as it is."""
    source = folder / "source"
    ignore = shutil.ignore_patterns(
        "__pycache__", "*.so", ".venv", ".git", ".*_cache", "tests", "traces", "build"
    )
    shutil.copytree(ROOT, source, ignore=ignore)
    chosen = {} if compiler is None else {"CC": compiler}
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "."]
    done = subprocess.run(
        [*command, "--wheel-dir", str(folder)],
        cwd=source,
        env={**os.environ, **chosen},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    assert compiler is None or path.name.endswith("-any.whl") is (compiler == "/bin/false")
    return zipfile.ZipFile(path)


def data_files() -> set[str]:
    """Every file of the source that is read at run time."""
    folders = [ROOT / name for name in ("actors", "runtime", "sim", "sundog")]
    found = [path for folder in folders for path in folder.rglob("*") if path.suffix in DATA]
    return {str(path.relative_to(ROOT)) for path in found}


def test_without_a_compiler_a_wheel_holds_everything_in_plain_python(tmp_path: Path) -> None:
    """It says why it is plain, and replays from where it was unpacked."""
    archive = wheel(tmp_path, "/bin/false")
    names = set(archive.namelist())
    assert len(data_files()) > 30 and not data_files() - names
    assert set(fast.MODULES) <= names and not any(name.endswith(".so") for name in names)
    archive.extractall(tmp_path / "installed")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    for arguments, words in (
        (["--version"], "no C compiler"),
        (["replay", str(TRACE), "--limit", "5"], "TTFT"),
    ):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "sundog", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0 and words in done.stdout, done.stderr


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")
def test_with_a_compiler_a_wheel_holds_the_compiled_simulator(tmp_path: Path) -> None:
    """Every module, their library, and all that the plain one holds."""
    names = set(wheel(tmp_path, None).namelist())
    libraries = [name for name in names if name.endswith(".so")]
    kernels = [name for name in libraries if name.startswith("runtime/native/")]
    assert len(libraries) - len(kernels) == len(fast.MODULES) + 1
    if shutil.which("g++"):
        best = build.variants_of(build.cpu_flags())[:1]
        assert kernels == [f"runtime/native/{build.library_name(variant)}" for variant in best]
    assert not data_files() - names and set(fast.MODULES) <= names
    assert not any(name.endswith(fast.WHY_PLAIN) for name in names)


WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {missing}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
sys.argv = ["sundog", *{arguments}]
from sundog.cli import main
main()
"""


def run_without(missing: set[str], arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """The command line where these modules are not installed."""
    code = WITHOUT.format(missing=missing, arguments=arguments)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_the_base_simulates() -> None:
    """Without any module of an extra."""
    missing = {module for modules in EXTRAS.values() for module in modules}
    for arguments in (["--help"], ["replay", str(TRACE), "--limit", "5"], ["trace", str(TRACE)]):
        done = run_without(missing, arguments)
        assert done.returncode == 0 and done.stdout, done.stderr


@pytest.mark.parametrize(
    ("missing", "arguments", "extra"),
    [
        ("quart", ["emulate", "--gpu", "h100"], "serve"),
        ("tokenizers", ["emulate", "--gpu", "h100"], "serve"),
        ("zmq", ["emulate", "--gpu", "h100", "--port", "0", "--kv-events-config", KV_EVENTS], "kv-events"),
        ("torch", ["serve"], "engine"),
        ("torch", ["demo"], "engine"),
        ("ray", ["serve", "--on", "ray"], "ray"),
        ("ray", ["sweep", str(TRACE), "--on", "ray"], "ray"),
    ],
)
def test_a_missing_extra_is_named(missing: str, arguments: list[str], extra: str) -> None:
    """In one line, with what installs it."""
    done = run_without({missing}, arguments)
    assert done.returncode == 2 and done.stderr.startswith("sundog: "), done.stderr
    assert missing in done.stderr and f"pip install 'sundog[{extra}]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_what_no_extra_brings_is_a_bug() -> None:
    """A module that is missing for another reason."""
    assert how_to_install(ModuleNotFoundError(name="actors.nothing")) is None


def test_the_lock_pins_plain_versions_of_all_that_is_asked_for() -> None:
    """No local part, which other machines do not find."""
    lines = (ROOT / "requirements.lock").read_text().split()
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    pinned = {re.sub(r"[-_.]+", "-", line.split("==")[0]).lower() for line in lines}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    names = {re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", text)[0]).lower() for text in asked}  # type: ignore[index]
    assert names - {"sundog"} <= pinned
