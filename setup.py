"""What pyproject.toml cannot say: a wheel holds the compiled simulator where there is a C compiler, and the
engine's kernels for this machine's CPU where there is one for C++ (others are compiled on first use).

So an ordinary `pip install` is fast, and an editable one (`make demo`) stays plain; `make fast` compiles
that one in place. Without a compiler the installation is the same in plain Python, and `sundog --version`
says why. Nothing that goes wrong here ends the installation. With SUNDOG_PGO=1 the compiler gets a profile
(`sundog.profiled`), which takes twice as long.
"""

import atexit
import os
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

FAST: dict[str, Any] = runpy.run_path(str(Path(__file__).with_name("sundog") / "fast.py"))
NATIVE: dict[str, Any] = runpy.run_path(
    str(Path(__file__).with_name("sundog") / "runtime" / "native" / "build.py")
)
SideBySide: Any = FAST["side_by_side"](pgo=os.environ.get("SUNDOG_PGO") == "1")
BUILD = tempfile.mkdtemp(prefix="sundog-build-")
"""Not in the source tree, whose `build/` would keep modules that are gone."""
atexit.register(shutil.rmtree, BUILD, ignore_errors=True)
PROBE = "#include <Python.h>\nint main(void) { return 0; }\n"

reasons: list[str] = []
"""Why the simulator stays plain, if it does."""


def stays_plain(reason: str) -> None:
    reasons.append(reason)
    print(f"sundog: the simulator stays plain Python: {reason}", file=sys.stderr)


def has_compiler() -> bool:
    """Whether a C compiler works here, Python's headers included."""
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    source = Path(BUILD) / "probe.c"
    source.write_text(PROBE)
    include = f"-I{sysconfig.get_path('include')}"
    try:
        done = subprocess.run(
            [*command, include, "-c", str(source), "-o", str(source.with_suffix(".o"))],
            capture_output=True,
            check=False,
        )
    except OSError:
        return False
    return done.returncode == 0 and source.with_suffix(".o").exists()


def extensions() -> list[Extension]:
    """The modules that simulations spend their time in, if a wheel is built and they can be compiled."""
    if "bdist_wheel" not in sys.argv:
        return []
    if not has_compiler():
        stays_plain("there was no C compiler with Python's headers when it was installed")
        return []
    try:
        return list(FAST["extensions"](target_dir=BUILD))
    except Exception as error:
        stays_plain(f"it could not be translated to C: {error}")
        return []


def build_kernels(folder: Path) -> None:
    """The kernels' library that is best here, beside its sources; otherwise the first use builds it."""
    try:
        for variant in NATIVE["variants_of"](NATIVE["cpu_flags"]())[:1]:
            NATIVE["compile_into"](folder, variant)
    except Exception as error:
        print(f"sundog: the engine's kernels are not compiled yet: {error}", file=sys.stderr)


class AllOrNone(SideBySide):
    """Compiles every module or none: they share a library."""

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:
            stays_plain(f"its C code could not be compiled: {error}")
            for path in Path(self.build_lib).rglob("*.so"):
                path.unlink()


class SayWhy(build_py):
    """Leaves the reason where `sundog --version` finds it."""

    def run(self) -> None:
        super().run()
        if self.distribution.ext_modules:  # a wheel for one kind of machine
            build_kernels(Path(self.build_lib) / "sundog" / "runtime" / "native")
        if reasons:
            (Path(self.build_lib) / "sundog" / FAST["WHY_PLAIN"]).write_text(reasons[-1] + "\n")


setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": AllOrNone, "build_py": SayWhy},
    options={"build": {"build_base": BUILD}},
)
