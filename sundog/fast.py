"""Optional ahead-of-time compilation, by mypyc, of the modules in which a simulation spends its time.

The same source files are compiled beside themselves, and give the same bytes sooner. Needs a C compiler.
`make fast` builds, `make plain` removes what was built. A build older than its source is refused at start-up
instead of used.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def one_thread() -> None:
    """Let numpy begin one thread: with arrays as small as a simulation's the others only spin, 0.08 s of CPU.

    Call it before numpy is imported. A setting that is there already stays. Processes begun later inherit it.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


ROOT = Path(__file__).parents[1]
MODULES = (
    "actors/kernel/actor.py",
    "actors/kernel/mailbox.py",
    "actors/kernel/owner.py",
    "actors/kernel/reply.py",
    "actors/kernel/tap.py",
    "actors/front/active_request.py",
    "actors/front/async_llm.py",
    "actors/front/prompts.py",
    "actors/front/bounds.py",
    "actors/messages/client.py",
    "actors/kernel/clock.py",
    "actors/core/acceptance.py",
    "actors/core/batch.py",
    "actors/core/blocks/block_pool.py",
    "actors/core/blocks/runs.py",
    "actors/core/step/commit.py",
    "actors/core/config.py",
    "actors/core/blocks/kv_cache.py",
    "actors/core/queue/lockstep.py",
    "actors/core/params/logprobs.py",
    "actors/core/step/plan.py",
    "actors/core/step/progress.py",
    "actors/core/request.py",
    "actors/core/params/sampling.py",
    "actors/core/queue/tenant_service.py",
    "actors/core/queue/tournament.py",
    "actors/core/step/state.py",
    "actors/core/params/stop_strings.py",
    "actors/core/step/update.py",
    "actors/core/queue/view.py",
    "actors/core/queue/waiting.py",
    "actors/engine/executor.py",
    "actors/engine/inbox.py",
    "actors/front/codec.py",
    "actors/front/health.py",
    "actors/front/intake.py",
    "actors/messages/engine.py",
    "actors/messages/__init__.py",
    "actors/core/blocks/kv_events.py",
    "actors/core/routers/fleet_state.py",
    "actors/core/routers/prefix_index.py",
    "actors/router/router.py",
    "actors/engine/scheduler.py",
    "actors/kernel/stream.py",
    "sim/client.py",
    "sim/clock.py",
    "sim/record/recorder.py",
    "sim/record/columns.py",
    "sim/cost/overhead.py",
    "sim/cost/tables/model.py",
    "sim/cost/tables/layers.py",
    "sim/cost/tables/kinds.py",
    "sim/cost/tables/attention.py",
    "sim/cost/tables/interpolate.py",
    "sim/cost/work.py",
    "sim/oracle.py",
    "sim/replay.py",
    "sim/backend.py",
    "sim/in_step.py",
    "sim/pipelined.py",
)
"""The compiled modules; policies are not among them, as users write them, too: they stay plain Python."""


WHY_PLAIN = "plain.txt"
"""The file, in an installation that could not be compiled, with the reason."""
SHARED = "actors.compiled"
"""The library of all of them lies in a package, for an installation knows packages, not files."""
OWN_CALLS = ("-fno-semantic-interposition", "-fvisibility=hidden", "-fno-plt")
"""Options that have gcc and clang call the library's own functions directly: nothing replaces them."""


def built(root: Path = ROOT) -> list[Path]:
    """The compiled modules below `root`, with the library they share."""
    own = [path for name in MODULES for path in root.glob(name.removesuffix(".py") + ".*.so")]
    return [*own, *root.glob(SHARED.replace(".", "/") + "__mypyc.*.so")]


def how(root: Path = ROOT) -> str:
    """Say how the simulator runs here: compiled, or plain and why."""
    if built(root):
        return "compiled"
    why = root / "sundog" / WHY_PLAIN
    reason = why.read_text(encoding="utf-8").strip() if why.exists() else "`make fast` compiles the simulator"
    return f"plain Python ({reason})"


def stale(root: Path = ROOT) -> list[str]:
    """The sources that have changed since they were compiled.

    None in an installation: what it holds was built together, whatever the times that pip wrote.
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


def extensions(
    modules: Sequence[str] = MODULES, opt_level: str = "3", target_dir: str | None = None
) -> list[Any]:
    """The modules as C extensions for setuptools; the working folder must be the source's."""
    from mypyc.build import mypycify

    made = mypycify(
        [*modules], opt_level=opt_level, debug_level="0", group_name=SHARED, target_dir=target_dir
    )
    if os.name == "posix":
        for extension in made:
            extension.extra_compile_args.extend(OWN_CALLS)
    return made


def build(root: Path = ROOT, opt_level: str = "3", below: str = "") -> None:
    """Compile the modules below a folder, by default all, in place; all take about a minute.

    The working folder must be `root`.
    """
    from setuptools import setup

    remove(root)
    modules = [name for name in MODULES if name.startswith(below)]
    arguments = ["--quiet", "build_ext", "--inplace", "--build-temp", "build/fast"]
    setup(
        name="sundog-fast",
        ext_modules=extensions(modules, opt_level),
        packages=[],
        py_modules=[],
        script_args=arguments,
    )
    for path in built(root):
        path.touch()  # A library whose shell did not change is copied with its old time.
    print(f"compiled {len(modules)} modules; `make plain` goes back", file=sys.stderr)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["build"]:
            build()
        case ["build", level]:
            build(opt_level=level)
        case ["build", level, below]:
            build(opt_level=level, below=below)
        case ["remove"]:
            remove()
        case _:
            sys.exit("usage: python -m sundog.fast build [LEVEL [FOLDER]] | remove")
