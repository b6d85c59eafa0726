"""`python -m runtime.ray.keeper FOLDER NUM_CPUS`: the process that a local Ray cluster belongs to.

It begins the cluster, prints the address or, in a line, why there is none, and ends it when its stdin does:
when the command that it was begun for has ended, however that ended. Whatever Ray has left then is ended,
too: its agents would go on for minutes.
"""

import ctypes
import os
import shutil
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
REAP_S = 1.0
OBJECT_STORE_BYTES = 100 * 2**20
"""No token and no weight goes through it; Ray takes no less than 75 MiB."""


def main(folder: str, num_cpus: int) -> None:
    """Keep the cluster until nobody holds the other end of stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        print(_begin(folder, num_cpus), flush=True)
        threading.Thread(target=_reap, args=(set(_children()),), daemon=True).start()
        sys.stdin.read()
    except BrokenPipeError:
        pass  # the command is gone already
    finally:
        _end(folder)


def _begin(folder: str, num_cpus: int) -> str:
    """The cluster's address, or why there is none."""
    import ray

    try:
        begun = ray.init(
            address="local",
            num_cpus=num_cpus,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            log_to_driver=False,
            logging_level="ERROR",
            _temp_dir=folder,
        )
    except Exception as error:  # noqa: BLE001  # whatever it is, the command says it
        return f"error: {' '.join(str(error).split())}"
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return str(begun.address_info["gcs_address"])


def _children() -> list[int]:
    """Processes whose parent this one is, by birth or since theirs has died."""
    lists = Path("/proc/self/task").glob("*/children")
    return [int(child) for path in lists for child in path.read_text().split()]


def _reap(rays: set[int]) -> None:
    """Let go of what has died below a process of Ray that died itself; Ray waits for its own."""
    while True:
        time.sleep(REAP_S)
        for child in set(_children()) - rays:
            with suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)


def _end(folder: str) -> None:
    """End the cluster, and every process that has come of it."""
    import ray

    ray.shutdown()
    while children := _children():
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(child, 0)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
