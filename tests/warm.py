"""Commands in forks of a process that has imported them: `python -m sundog` without the time of its imports.

A fork runs the same module as `__main__`, with arguments, output, environment and exit code of its own, and
is a child of the tests' own process. What a fresh interpreter alone can show is run by `subprocess`: what is
imported when, other hash seeds (a fork has those of the process it comes from), limits, and each door once.
"""

import atexit
import ctypes
import functools
import gc
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from tests.forked import Forked
from tests.patience import START_S

PR_SET_CHILD_SUBREAPER = 36
ROOT = Path(__file__).parents[1]
RANKS = "tests.runtime.ranks.together"
MOST_BYTES = 1 << 20
COMPUTING = (
    "sundog.runtime.engine.backend",
    "sundog.runtime.embedding.backend",
    "sundog.runtime.worker.engine_process",
    "sundog.runtime.worker.host",
    "sundog.runtime.worker.rank_process",
    "sundog.runtime.worker.watchdog",
    "transformers.models.llama.modeling_llama",
)
"""What a command that computes a model imports on its way, and a server's engines do."""


def begin(
    arguments: Sequence[object],
    stdout: IO[str] | None,
    stderr: IO[str],
    folder: Path | None,
    *,
    computes: bool = False,
) -> int:
    """Begin `python -m` with these arguments; its process id. Without `stdout` it has the tests' own.

    One that `computes` finds torch imported.
    """
    where, env = str(folder or Path.cwd()), dict(os.environ)
    asked = {"arguments": list(map(str, arguments)), "folder": where, "env": env}
    outputs = [1 if stdout is None else stdout.fileno(), stderr.fileno()]
    control = _imported(computes)
    _adopts(True)  # the fork's own parent ends at once
    try:
        socket.send_fds(control, [json.dumps(asked).encode()], outputs)
        return int(control.recv(64))
    finally:
        _adopts(False)


def popen(*arguments: object) -> Forked:
    """`python -m` with these arguments, and a pipe from its stderr."""
    reads, writes = os.pipe()
    with os.fdopen(writes, "w") as theirs:
        pid = begin(arguments, None, theirs, None, computes=computes(*arguments))
    return Forked(pid, os.fdopen(reads))


def computes(*arguments: object) -> bool:
    """Whether this is a command that computes a model, with what that takes."""
    serves = "serve" in arguments or "tests.faulty_server" in arguments
    measures = "demo" in arguments or ("calibrate" in arguments and "sundog-tiny" in arguments)
    computes = measures or RANKS in arguments or (serves and "--simulate" not in arguments)
    return computes and find_spec("torch") is not None


def afresh(*arguments: object, folder: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """`python -m` with these arguments in a fresh interpreter, to its end."""
    command = [sys.executable, "-m", *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=START_S)
    done.stderr = without_progress(done.stderr)
    return done


def without_progress(stderr: str) -> str:
    """Leave out what a model says that loads for more than a second, as it does on a busy machine."""
    lines = stderr.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("loading "))


def run(*arguments: object, folder: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """`python -m` with these arguments, to its end, in this folder or that of the tests."""
    if not can():
        return afresh(*arguments, folder=folder)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = Forked(begin(arguments, out, err, folder, computes=computes(*arguments)), None)
        try:
            code = process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        for file in (out, err):
            file.seek(0)
        said = without_progress(err.read())
        return subprocess.CompletedProcess(list(map(str, arguments)), code, out.read(), said)


def _adopts(orphans: bool) -> None:
    """Whether orphans below this process become its children."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0)


@functools.cache
def can() -> bool:
    """Whether this system has what forks take."""
    return sys.platform == "linux" and hasattr(os, "pidfd_open")


@functools.cache
def _imported(computes: bool) -> socket.socket:
    """The socket of the process that has imported everything, torch or not; it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_BYTES)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.warm", str(theirs.fileno()), *["torch"] * computes],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _import_all(computes: bool) -> None:
    """Whatever the command line uses; with torch only what `computes`."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import pkgutil
    from importlib import import_module

    import sundog
    import sundog.actors
    import sundog.sim

    for package in (sundog.actors, sundog.sim):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith(("__main__", "vllm_scheduler")):  # which runs where vLLM is
                import_module(found.name)
    import_module("sundog.runtime.serve")
    if computes:
        for name in COMPUTING:
            import_module(name)
        from tests.warm_engines import fork_engines

        return fork_engines()
    assert "torch" not in sys.modules, "a command that is forked must not find torch imported"


def main(descriptor: int, *computes: str) -> None:
    """Fork when asked, until the asker is gone; a fork is what was asked for."""
    gc.disable()
    _import_all(bool(computes))
    gc.freeze()
    gc.enable()
    control = socket.socket(fileno=descriptor)
    while True:
        asked, outputs, _, _ = socket.recv_fds(control, MOST_BYTES, 2)
        if not asked:
            return
        reads, writes = os.pipe()
        between = os.fork()
        if not between:
            if pid := os.fork():
                os.write(writes, str(pid).encode())
                os._exit(0)
            for descriptor in (control.detach(), reads, writes):
                os.close(descriptor)
            return _live(json.loads(asked), outputs)
        os.waitpid(between, 0)  # now the fork has a new parent
        control.send(os.read(reads, 64))
        for descriptor in (reads, writes, *outputs):
            os.close(descriptor)


def _live(asked: dict[str, Any], outputs: Sequence[int]) -> None:
    """Be `python -m`, to its end; nothing is taken apart that the system frees at once."""
    for number, output in enumerate(outputs, 1):
        os.dup2(output, number)
        os.close(output)
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115  # for as long as it lives
    sys.stderr = sys.__stderr__ = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv = asked["arguments"]
    code: object = None
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    except BaseException as error:  # noqa: BLE001  # as Python itself ends
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
