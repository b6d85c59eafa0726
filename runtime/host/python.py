"""Python child processes with the same packages, and nothing imported from the current folder.

`python -m` puts the current folder first in `sys.path`, so that a `runtime.py` or a `json.py` there would
replace ours or the standard library's. This file is started with `-P` instead, which prevents that, and runs
the module.
"""

import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

SAFE_PATH = "PYTHONSAFEPATH"


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of ours in a Python like this one, from any folder."""
    return [sys.executable, "-P", os.path.abspath(__file__), module, *arguments]


@contextmanager
def safe_path() -> Iterator[None]:
    """Keep the current folder out of child Pythons that start inside.

    The standard library starts them with `-c`, which puts that folder first; `sys.path` follows later.
    """
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before


def _find_ours() -> None:
    """Put the folder of this package first in `sys.path`, unless Python already finds the package.

    The parent found an uninstalled source folder as its current folder.
    """
    ours = os.path.abspath(__file__)  # sundog/runtime/host/python.py, where sundog/runtime may be a link
    for _ in range(3):
        ours = os.path.dirname(ours)
    found = find_spec(os.path.basename(ours))
    places = [] if found is None else found.submodule_search_locations or []
    if os.path.realpath(ours) not in map(os.path.realpath, places):
        sys.path.insert(0, os.path.dirname(ours))


if __name__ == "__main__":
    _find_ours()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
