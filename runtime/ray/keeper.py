"""`python -m sundog.runtime.ray.keeper FOLDER NUM_CPUS`: owner process of a local Ray cluster.

A child of it starts the cluster and prints the address or, in a line, why it cannot. The keeper ends the
cluster when its stdin closes: when its command has ended in any way, even while the cluster is starting.
Every process of Ray is killed then: its agents would go on for minutes.
"""

import ctypes
import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
LOOK_S = 0.01
OBJECT_STORE_BYTES = 100 * 2**20
"""Size of Ray's object store: no token and no weight goes through it; Ray's minimum is 75 MiB."""


def main(folder: str, num_cpus: int) -> None:
    """Keep the cluster until the other end of stdin is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if not os.fork():
        return _begin(folder, num_cpus)
    os.close(sys.stdout.fileno())  # so that a child that dies ends it, and the command knows
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel lets go of what dies
    sys.stdin.read()
    while children := _children():
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        time.sleep(LOOK_S)
    with suppress(ChildProcessError):  # where children are not listed, Ray ends the cluster by itself
        os.wait()
    shutil.rmtree(folder, ignore_errors=True)


def _begin(folder: str, num_cpus: int) -> None:
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
        said = str(begun.address_info["gcs_address"])
    except Exception as error:  # noqa: BLE001  # whatever it is, the command says it
        said = f"error: {' '.join(str(error).split())}"
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with suppress(BrokenPipeError):  # the command is gone already
        print(said, flush=True)
    sys.stdin.read()
    ray.shutdown()


def _children() -> list[int]:
    lists = Path("/proc/self/task").glob("*/children")
    return [int(child) for path in lists for child in path.read_text().split()]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
