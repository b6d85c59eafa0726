"""`sundog` and `python -m sundog`: the command line, whose import is already a part of the command."""

import gc
import os
import sys
import threading

from sundog import terminated

SELDOM = 100_000
"""Objects made before Python looks for reference cycles: our records form none, and a look at what was
imported, every 700 objects as Python does it, is a twentieth of a short command."""


def main() -> None:
    """Run the command line. Ctrl-C may come while it is imported, and ends that in one line too.

    So does SIGTERM in a sweep, a plan or a capacity: they may take hours, and their processes end with them.
    A replay never looks for cycles: the one that it leaves, its graph, ends with the process.
    """
    # Whatever starts a Python below this one, a library too, does not import what lies in the current folder.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    gc.set_threshold(0 if sys.argv[1:2] == ["replay"] else SELDOM, 50, 50)
    try:
        if sys.argv[1:2] in (["sweep"], ["plan"], ["capacity"]):
            terminated.like_ctrl_c()
        from sundog.cli import main as run

        run()
    except KeyboardInterrupt as error:
        print("sundog: interrupted", file=sys.stderr)
        sys.exit(terminated.CODE if isinstance(error, terminated.Terminated) else 130)
    except SystemExit as end:
        terminated.no_more()
        _leave(end)


def _leave(end: SystemExit) -> None:
    """End without taking the interpreter apart, which frees object by object what the system frees at once.

    Only where nothing waits for that: no other thread runs, no process was begun, and stdout can be flushed.
    """
    alone = threading.active_count() == 1 and "multiprocessing.process" not in sys.modules
    if not alone or not isinstance(end.code, int):
        raise end
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        raise end from None
    os._exit(end.code)


if __name__ == "__main__":
    main()
