"""`sundog` and `python -m sundog`: start of the command line. It imports little, so that commands start
fast.
"""

import gc
import os
import sys
import threading

from sundog import terminated

SELDOM = 100_000
"""New objects after which Python looks for reference cycles. Our records form none, and a search at every 700
objects, the default, costs a twentieth of a short command.
"""


def main() -> None:
    """Run the command line. Ctrl-C during its import also ends it with one line.

    SIGTERM ends a sweep, a plan or a capacity search in the same way: they may take hours, and their child
    processes must end with them. A replay never searches for reference cycles: its one cycle, the graph,
    lasts until the process exits.
    """
    # Whatever starts a Python below this one, a library too, does not import what lies in the current folder.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    _open_what_is_closed()
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


def _open_what_is_closed() -> None:
    """Open the null device in place of a closed stdin, stdout or stderr.

    Otherwise the next file that is opened, a journal say, has the number of one of them, and whatever writes
    there writes into it.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def _leave(end: SystemExit) -> None:
    """Exit without freeing objects one by one, since the system frees the memory at once.

    Only if nothing depends on it: no other thread runs, no child process was started, and stdout can be
    flushed.
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
