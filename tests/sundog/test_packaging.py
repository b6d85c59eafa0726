"""Installed packages: the base simulates, a missing extra is named, data files are included."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE

import pytest

from sundog import fast
from sundog.cli import COMMANDS
from sundog.ends import EXTRAS, how_to_install
from sundog.runtime.native import build
from tests.patience import START_S
from tests.test_layers import OURS, STANDARD, imports, sources

ROOT = Path(__file__).parents[2]
KV_EVENTS = '{"enable_kv_cache_events": true}'
TRACE = ROOT / "traces" / "chat-poisson-2rps-5min.jsonl.gz"
DATA = {".cpp", ".css", ".h", ".jinja", ".js", ".json", ".npz", ".safetensors", ".toml"}


def wheel(folder: Path, compiler: str | None, *, isolated: bool = False) -> zipfile.ZipFile:
    """The wheel of a copy of the source, unchanged; if `isolated`, with the index's packages."""
    source = folder / "source"
    ignore = shutil.ignore_patterns(
        "__pycache__", "*.so", ".venv", ".git", ".*_cache", "tests", "traces", "build"
    )
    shutil.copytree(ROOT, source, ignore=ignore)
    chosen = {} if compiler is None else {"CC": compiler}
    before = sorted(source.rglob("*"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "."]
    command += [] if isolated else ["--no-build-isolation"]
    done = subprocess.run(
        [*command, "--wheel-dir", str(folder)],
        cwd=source,
        env={**os.environ, **chosen},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    left = {path for path in source.rglob("*") if path not in before and ".egg-info" not in str(path)}
    assert not {path for path in left if "__pycache__" not in path.parts}, (
        "a build leaves nothing in the source"
    )
    (path,) = folder.glob("*.whl")
    assert compiler is None or path.name.endswith("-any.whl") is (compiler == "/bin/false")
    return zipfile.ZipFile(path)


def data_files() -> set[str]:
    """Every file of the source that is read at run time."""
    folders = [ROOT / name for name in ("actors", "runtime", "sim", "sundog")]
    found = [path for folder in folders for path in folder.rglob("*") if path.suffix in DATA]
    inside = {str(path.relative_to(ROOT)) for path in found}
    return {name if name.startswith("sundog/") else f"sundog/{name}" for name in inside}


@pytest.mark.long(reason="builds and installs a wheel")
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


@pytest.mark.long(rare=True, reason="translates and compiles sixty modules")
@pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")
def test_with_a_compiler_a_wheel_holds_the_compiled_simulator(tmp_path: Path) -> None:
    """Built as users do, in isolation: every module, their library, and all that the plain one holds."""
    names = set(wheel(tmp_path, None, isolated=True).namelist())
    libraries = [name for name in names if name.endswith(".so")]
    kernels = [name for name in libraries if name.startswith("sundog/runtime/native/")]
    assert len(libraries) - len(kernels) == len(fast.MODULES) + 1
    if shutil.which("g++"):
        best = build.variants_of(build.cpu_flags())[:1]
        assert kernels == [f"sundog/runtime/native/{build.library_name(variant)}" for variant in best]
    assert not data_files() - names and set(fast.MODULES) <= names
    assert not any(name.endswith(fast.WHY_PLAIN) for name in names)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "a.py:1: note: x\na.py:2: error: no such name  [name-defined]\nb.py:3: error: y",
            "a.py:2: error: no",
        ),
        (
            "In file included from a.c:1:\na.h:2:10: fatal error: Python.h: No such file\ncompilation",
            "a.h:2:10:",
        ),
        ("killed\n\n", "killed"),
    ],
)
def test_the_reason_is_the_first_error(said: str, reason: str) -> None:
    """Of mypyc's or the C compiler's words; else the last of them."""
    assert fast.first_error(said).startswith(reason)


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_what_cannot_be_translated_is_said_by_its_first_error(tmp_path: Path) -> None:
    """By mypyc itself, and nothing is left beside the module."""
    (tmp_path / "broken.py").write_text("def f() -> int:\n    return 1\n\nf(2)\n")
    code = "from sundog import fast\ntry: fast.extensions(['broken.py'], target_dir='built')\n"
    code += "except fast.Uncompiled as error: print(error)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("broken.py:4: error: Too many arguments"), done.stderr
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {"broken.py", "built"}


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


COMMAND_LINES = {
    "bench": "http://127.0.0.1:9 {trace}",
    "calibrate": "sundog-tiny -o {folder}/calibrated.toml",
    "capacity": "{trace} --limit 5 --slo p95(ttft)<1",
    "chat": "http://127.0.0.1:9",
    "compare": "{run} {run}",
    "dashboard": "{run} -o {folder}/dashboard.html",
    "demo": "",
    "emulate": "--gpu h100 --host 203.0.113.1",
    "explain": "{run}",
    "export": "fcfs -o {folder}/exported.py",
    "figure": "{run} cdf -o {folder}/figure.svg",
    "perfetto": "{run} -o {folder}/perfetto.json",
    "plan": "{trace} --limit 5",
    "replay": "{trace} --limit 5 --out {folder}/again",
    "report": "{run} -o {folder}/report.html",
    "schedule": "{trace}",
    "serve": "--port 0",
    "sweep": "{trace} --limit 5 --vary policy=fcfs",
    "trace": "{trace}",
    "validate": "{folder}",
    "walk": "{run} 0",
    "workload": "{folder}/none.toml",
}
"""A command line of each command that ends by itself, once everything that it needs has been imported."""
TAKES = {
    "serve": {"bench", "calibrate", "chat", "demo", "emulate", "serve"},
    "engine": {"calibrate", "demo", "serve"},
    "plot": {"figure"},
}
"""The commands that cannot do without an extra."""
COMPUTE = {"calibrate", "demo", "serve"}
"""What these have named by then is the extra that includes all others."""
WALK = """
import io, os, sys
missing, lines = {missing!r}, {lines!r}
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
import numpy, pyarrow, pydantic, rich.console, trio  # of the base: once, and not once a command
from sundog.cli import main
for command, arguments in lines.items():
    child = os.fork()
    if not child:
        out = open(f"{folder}/{{command}}.err", "w")
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        sys.argv = ["sundog", command, *arguments.split()]
        try:
            main()
        except SystemExit as end:
            sys.stderr.flush()
            os._exit(end.code or 0)
    print(command, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("extra", TAKES)
def test_a_command_names_the_extra_that_it_lacks(extra: str, tmp_path: Path) -> None:
    """Those that cannot do without say in a line what to install."""
    walk(extra, TAKES[extra], tmp_path)


@pytest.mark.long(rare=True, reason="runs every command once for each extra, half a minute each")
@pytest.mark.parametrize("extra", EXTRAS)
def test_every_command_names_the_extra_that_it_lacks(extra: str, tmp_path: Path) -> None:
    """Without one extra each command does without, or says in a line what to install."""
    # What could do without would compute for minutes, or serve: the tests of these commands do.
    walk(extra, {name for name in COMMANDS if name not in COMPUTE} | TAKES.get(extra, set()), tmp_path)


def walk(extra: str, walked: set[str], tmp_path: Path) -> None:
    """Run these commands without the modules of one extra, and look at how each ends."""
    assert COMMAND_LINES.keys() == set(COMMANDS)
    fills = {"trace": str(TRACE), "run": str(tmp_path / "run"), "folder": str(tmp_path)}
    missing, lacking = set(EXTRAS[extra]), TAKES.get(extra, set())
    made = run_without(missing, ["replay", str(TRACE), "--limit", "5", "--out", fills["run"]])
    assert made.returncode == 0, made.stderr
    lines = {name: COMMAND_LINES[name].format(**fills) for name in sorted(walked)}
    code = WALK.format(missing=missing, lines=lines, folder=tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=PIPE, stderr=PIPE, text=True, start_new_session=True
    ) as walk:
        try:
            out, error = walk.communicate(timeout=START_S)
        finally:  # a command that serves would keep its port for ever
            with suppress(ProcessLookupError):
                os.killpg(walk.pid, signal.SIGKILL)
    codes = dict(line.split() for line in out.splitlines())
    assert codes.keys() == walked, error
    for name, code in codes.items():
        said = (tmp_path / f"{name}.err").read_text()
        assert "Traceback" not in said and "bug" not in said, f"{name}: {said}"
        wanted = "engine" if name in COMPUTE else extra
        if name in lacking:
            assert code == "2" and f"pip install 'sundog[{wanted}]'" in said, f"{name}: {said}"
            assert len(said.splitlines()) == 1
        else:
            assert "pip install" not in said, f"{name}: {said}"


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_each_extra_has_the_modules_that_its_packages_bring() -> None:
    """Whatever our source imports belongs to the base, or to an extra that an error can name."""
    base = {
        "_typeshed",
        "cbor2",
        "click",
        "jinja2",
        "mypy_extensions",
        "numpy",
        "pyarrow",
        "pydantic",
        "rich",
    }
    base |= {"pydantic_core", "tomli_w", "trio", "xxhash", "markupsafe"}
    elsewhere = {"vllm", "triton"}  # in a Python of its own, or with torch
    known = base | elsewhere | {module for modules in EXTRAS.values() for module in modules} | OURS
    used = {
        module.split(".")[0]: file
        for folder in OURS
        for file in sources(folder)
        for module, _ in imports(file)
    }
    assert not {name: file for name, file in used.items() if name not in known | STANDARD}


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_the_base_simulates() -> None:
    """Without any module of an extra."""
    missing = {module for modules in EXTRAS.values() for module in modules}
    for arguments in (["--help"], ["replay", str(TRACE), "--limit", "5"], ["trace", str(TRACE)]):
        done = run_without(missing, arguments)
        assert done.returncode == 0 and done.stdout, done.stderr


@pytest.mark.long(keep=3, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize(
    ("missing", "arguments", "extra"),
    [
        ("quart", ["emulate", "--gpu", "h100", "--port", "0"], "serve"),
        ("tokenizers", ["emulate", "--gpu", "h100", "--port", "0"], "serve"),
        ("zmq", ["emulate", "--gpu", "h100", "--port", "0", "--kv-events-config", KV_EVENTS], "kv-events"),
        ("torch", ["serve", "--port", "0"], "engine"),
        ("torch", ["demo"], "engine"),
        ("prometheus_client", ["demo"], "engine"),
        ("prometheus_client", ["emulate", "--gpu", "h100", "--port", "0"], "serve"),
        ("ray", ["serve", "--port", "0", "--on", "ray"], "ray"),
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
    assert how_to_install(ModuleNotFoundError(name="sundog.actors.nothing")) is None


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
