"""Optional ahead-of-time compilation, by mypyc, of the modules that dominate a simulation's time.

The source files are compiled in place; results are the same, byte for byte. Needs a C compiler. `make fast`
builds, `make plain` removes what was built. A build older than its source is refused at start-up.
"""

import io
import itertools
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from contextlib import chdir, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Any


def one_thread() -> None:
    """Restrict numpy to one thread: a simulation's arrays are small, and further threads spin for 0.08 s of
    CPU.

    Call it before numpy is imported. An existing setting stays. Child processes inherit it.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


ROOT = Path(__file__).parents[1]
MODULES = (
    "sundog/actors/kernel/actor.py",
    "sundog/actors/kernel/mailbox.py",
    "sundog/actors/kernel/owner.py",
    "sundog/actors/kernel/reply.py",
    "sundog/actors/kernel/tap.py",
    "sundog/actors/front/active_request.py",
    "sundog/actors/front/async_llm.py",
    "sundog/actors/front/prompts.py",
    "sundog/actors/front/bounds.py",
    "sundog/actors/messages/client.py",
    "sundog/actors/kernel/clock.py",
    "sundog/actors/core/acceptance.py",
    "sundog/actors/core/batch.py",
    "sundog/actors/core/blocks/block_pool.py",
    "sundog/actors/core/blocks/runs.py",
    "sundog/actors/core/step/commit.py",
    "sundog/actors/core/step/demand.py",
    "sundog/actors/core/step/draft.py",
    "sundog/actors/core/step/handover.py",
    "sundog/actors/core/config.py",
    "sundog/actors/core/blocks/kv_cache.py",
    "sundog/actors/core/queue/lockstep.py",
    "sundog/actors/core/params/logprobs.py",
    "sundog/actors/core/step/plan.py",
    "sundog/actors/core/step/progress.py",
    "sundog/actors/core/request.py",
    "sundog/actors/core/params/sampling.py",
    "sundog/actors/core/queue/tenant_service.py",
    "sundog/actors/core/queue/tournament.py",
    "sundog/actors/core/step/state.py",
    "sundog/actors/core/params/stop_strings.py",
    "sundog/actors/core/step/update.py",
    "sundog/actors/core/queue/view.py",
    "sundog/actors/core/queue/waiting.py",
    "sundog/actors/engine/executor.py",
    "sundog/actors/engine/front_queue.py",
    "sundog/actors/engine/inbox.py",
    "sundog/actors/front/codec.py",
    "sundog/actors/front/health.py",
    "sundog/actors/front/intake.py",
    "sundog/actors/messages/engine.py",
    "sundog/actors/messages/__init__.py",
    "sundog/actors/core/blocks/kv_events.py",
    "sundog/actors/core/routers/fleet_state.py",
    "sundog/actors/core/routers/prefix_index.py",
    "sundog/actors/router/router.py",
    "sundog/actors/router/handovers.py",
    "sundog/actors/engine/scheduler.py",
    "sundog/actors/kernel/stream.py",
    "sundog/sim/client.py",
    "sundog/sim/clock.py",
    "sundog/sim/fleet/links.py",
    "sundog/sim/record/recorder.py",
    "sundog/sim/record/columns.py",
    "sundog/sim/cost/overhead.py",
    "sundog/sim/cost/tables/model.py",
    "sundog/sim/cost/tables/layers.py",
    "sundog/sim/cost/tables/kinds.py",
    "sundog/sim/cost/tables/attention.py",
    "sundog/sim/cost/tables/interpolate.py",
    "sundog/sim/cost/work.py",
    "sundog/sim/oracle.py",
    "sundog/sim/replay.py",
    "sundog/sim/backend.py",
    "sundog/sim/in_step.py",
    "sundog/sim/pipelined.py",
    "sundog/sim/trace/record.py",
    "sundog/sim/trace/csv_rows.py",
    "sundog/sim/trace/programs.py",
)
"""Compiled modules. Policies stay plain Python, since users write them, too."""


WHY_PLAIN = "plain.txt"
"""File that states why an installation could not be compiled."""
SHARED = "sundog.compiled"
"""Shared library of all compiled modules, inside a package because installers handle packages, not single
files.
"""
OWN_CALLS = ("-fno-semantic-interposition", "-fvisibility=hidden", "-fno-plt")
"""Options that make gcc and clang call the library's functions directly, since nothing overrides them."""

OWN_SUMS = "-ffp-contract=off"
"""Option that keeps a product and a sum two roundings, as in Python, on CPUs that have both in one
instruction.
"""

OPT_LEVEL = "2"
"""Optimisation level of the C compiler: 3 gains nothing."""
MYPY = """
[mypy]
ignore_missing_imports = True

[mypy-cbor2.*,click.*,httpx.*,jinja2.*,matplotlib.*,pyarrow.*,pydantic.*,rich.*,scipy.*,tomli_w.*,xxhash.*]
follow_imports = skip
follow_imports_for_stubs = True
"""
"""Options of mypy for the translation to C. Types are checked by `make types`; here mypy follows imports only
into modules that affect the C code (ours, numpy's and trio's), which halves the time. No others need be
installed.
"""


def built(root: Path = ROOT) -> list[Path]:
    """Return the compiled modules below `root`, and the library that they share."""
    own = [path for name in MODULES for path in root.glob(name.removesuffix(".py") + ".*.so")]
    return [*own, *root.glob(SHARED.replace(".", "/") + "__mypyc.*.so")]


def how(root: Path = ROOT) -> str:
    """Return a line that says whether the simulator is compiled, or why not."""
    if built(root):
        return "compiled"
    why = root / "sundog" / WHY_PLAIN
    reason = why.read_text(encoding="utf-8").strip() if why.exists() else "`make fast` compiles the simulator"
    return f"plain Python ({reason})"


def stale(root: Path = ROOT) -> list[str]:
    """Return the sources that have changed since they were compiled.

    Empty in an installation: its files were built together, whatever times pip wrote.
    """
    if not (root / "pyproject.toml").exists():
        return []
    libraries: dict[str, list[os.stat_result]] = {}
    for folder in {os.path.dirname(name) for name in MODULES}:
        # One listing of a folder: a pattern for each module takes 20 ms of every command.
        with os.scandir(root / folder) as entries:
            for entry in entries:
                if entry.name.endswith(".so"):
                    source = f"{folder}/{entry.name.partition('.')[0]}.py"
                    libraries.setdefault(source, []).append(entry.stat())
    return [
        name
        for name in MODULES
        if any(library.st_mtime < (root / name).stat().st_mtime for library in libraries.get(name, ()))
    ]


def remove(root: Path = ROOT) -> None:
    """Remove the compiled modules: back to plain Python."""
    for path in built(root):
        path.unlink()


class Uncompiled(Exception):
    """The modules cannot be translated or compiled; the message is the first error."""


def extensions(
    modules: Sequence[str] = MODULES, opt_level: str = OPT_LEVEL, target_dir: str = "build"
) -> list[Any]:
    """Translate the modules to C, and return them as extensions for setuptools; raises Uncompiled.

    The working folder must be the source's. A file of C for each module is written below `target_dir`, from a
    copy of the source in which records have their constructors written out (`compiled_records`).
    """
    from mypyc.build import mypycify

    target_dir = os.path.abspath(target_dir)
    os.makedirs(target_dir, exist_ok=True)
    staged = Path(target_dir) / "source"
    staged.mkdir()
    # By its path: a build in isolation runs this file, too, and has no package to import from.
    stage = runpy.run_path(str(Path(__file__).with_name("compiled_records.py")))["stage"]
    config = os.path.join(target_dir, "mypy.ini")
    with open(config, "w", encoding="utf-8") as file:
        file.write(MYPY)
    options = [f"--config-file={config}", f"--cache-dir={os.path.join(target_dir, 'mypy')}"]
    _progress(f"translating {len(modules)} modules to C")
    said = io.StringIO()
    try:
        stage(Path.cwd(), staged, modules)
        with redirect_stdout(said), chdir(staged):
            made = mypycify(
                [*options, *modules],
                opt_level=opt_level,
                debug_level="0",
                group_name=SHARED,
                target_dir=target_dir,
                multi_file=True,
            )
    except (Exception, SystemExit) as error:
        raise Uncompiled(first_error(said.getvalue()) or str(error) or type(error).__name__) from error
    headers = os.path.join(target_dir, os.path.dirname(SHARED.replace(".", "/")))
    for extension in made:
        extension.include_dirs.append(headers)  # mypyc writes them there, and does not look there
        if os.name == "posix":  # one list for all of them
            extension.extra_compile_args = [*extension.extra_compile_args, *OWN_CALLS, OWN_SUMS]
    return made


def first_error(said: str) -> str:
    """Return the first line that a compiler marks as an error, else the last line; empty if there is none."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next((line for line in lines if "error:" in line), lines[-1] if lines else "")


def side_by_side(*, pgo: bool = False) -> type:
    """Return setuptools' `build_ext` that compiles one file per CPU at a time.

    Setuptools itself compiles the files of an extension one after another, and nearly all are in one. With
    `pgo`, the shared library is compiled a second time by the counts of a training (`sundog.profiled`), or a
    line says why not.
    """
    from concurrent.futures import ThreadPoolExecutor

    from setuptools.command.build_ext import build_ext

    class SideBySide(build_ext):  # type: ignore[misc]  # setuptools ships no types
        """Build step that compiles the largest files first, and prints the progress."""

        def build_extensions(self) -> None:
            workers = self.parallel = getattr(self, "parallel", None) or cpus()
            (library,) = (each for each in self.extensions if each.name.endswith("__mypyc"))
            # By its path, as above.
            profiled = runpy.run_path(str(Path(__file__).with_name("profiled.py"))) if pgo else {}
            why_not = profiled["why_not"](self.compiler) if pgo else None
            is_twice = pgo and why_not is None
            if why_not is not None:
                print(f"sundog: compiled without a profile: {why_not}", file=sys.stderr)
            total = sum(len(each.sources) for each in [*self.extensions, *([library] if is_twice else [])])
            one_by_one, done = self.compiler.compile, itertools.count(1)

            def compile_one(source: str, options: dict[str, Any]) -> list[str]:
                compile_it = partial(one_by_one, [source], **options)
                try:
                    objects: list[str] = compile_it()
                except Exception as error:
                    raise Uncompiled(first_error(_said_by(compile_it)) or str(error)) from error
                _progress(f"compiled {next(done)} of {total} files")
                return objects

            with ThreadPoolExecutor(workers) as pool:

                def compile_all(sources: Sequence[str], **options: Any) -> list[str]:
                    ordered = sorted(sources, key=os.path.getsize, reverse=True)
                    return list(itertools.chain(*pool.map(partial(compile_one, options=options), ordered)))

                self.compiler.compile = compile_all
                if is_twice:
                    path = Path(self.get_ext_fullpath(library.name))
                    profiled["train"](library, path, Path(self.build_temp), super().build_extensions)
                super().build_extensions()

    return SideBySide


def _said_by(compile_again: Callable[[], object]) -> str:
    """Return the compiler's stderr by repeating the failing command; distutils discards it."""
    import tempfile

    with tempfile.TemporaryFile("w+", errors="replace") as said:
        sys.stderr.flush()
        ours = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            with suppress(Exception):
                compile_again()
        finally:
            os.dup2(ours, 2)
            os.close(ours)
        said.seek(0)
        return said.read()


def cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _progress(what: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[Ksundog: {what}", end="", file=sys.stderr, flush=True)
    elif " of " not in what or what.split()[1].endswith("0"):
        print(f"sundog: {what}", file=sys.stderr, flush=True)


def build(root: Path = ROOT, opt_level: str = OPT_LEVEL, below: str = "", *, pgo: bool = False) -> None:
    """Compile the modules below a folder, by default all, in place; a minute or two of CPU, with `pgo` four.

    The working folder must be `root`, and nothing else is left in it.
    """
    import tempfile

    from setuptools import setup

    remove(root)
    modules = [name for name in MODULES if name.startswith(below)]
    with tempfile.TemporaryDirectory(prefix="sundog-build-") as folder:
        setup(
            name="sundog-fast",
            ext_modules=extensions(modules, opt_level, folder),
            packages=[],
            py_modules=[],
            cmdclass={"build_ext": side_by_side(pgo=pgo)},
            script_args=[
                *("--quiet", "build_ext", "--inplace"),
                *("--build-temp", folder, "--build-lib", os.path.join(folder, "lib")),
            ],
        )
    for path in built(root):
        path.touch()  # A library whose shell did not change is copied with its old time.
    _progress(f"compiled {len(modules)} modules; `make plain` goes back")
    if sys.stderr.isatty():
        print(file=sys.stderr)


if __name__ == "__main__":
    match [word for word in sys.argv[1:] if word != "--pgo"]:
        case ["build", *chosen] if len(chosen) <= 2:
            try:
                build(ROOT, *chosen, pgo="--pgo" in sys.argv)
            except Uncompiled as error:
                sys.exit(f"sundog: the simulator cannot be compiled: {error}")
        case ["remove"]:
            remove()
        case _:
            sys.exit("usage: python -m sundog.fast build [--pgo] [LEVEL [FOLDER]] | remove")
