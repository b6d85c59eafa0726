"""GPUs of each replica: one for each rank, set by CUDA_VISIBLE_DEVICES before torch starts.

Law: no two replicas share a GPU, and no driver is called before a fork.
"""

import os
import re
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from sundog.actors.core.config import ConfigError

VISIBLE = "CUDA_VISIBLE_DEVICES"
DEVICES = Path("/dev")


def gpus_of(replicas: int, ranks: int, visible: str | None, num_gpus: int | None) -> tuple[str, ...]:
    """Return each replica's GPUs: from `visible`, if the server was given that, or else from all.

    `num_gpus` None means that their number is unknown. Raises ConfigError if there are too few.
    """
    needed = replicas * ranks
    if visible is not None:
        names = [name.strip() for name in visible.split(",") if name.strip()]
        has = f"{VISIBLE} ({visible}) names {len(names)}"
    else:
        names = [str(number) for number in range(needed if num_gpus is None else num_gpus)]
        has = f"this machine has {len(names)}"
    if len(names) < needed:
        each = "" if ranks == 1 else f" of {ranks} ranks"
        raise ConfigError(
            f"--replicas is {replicas}: replicas{each} need {needed} GPUs, and {has}; lower it, or give"
            " --device cpu"
        )
    return tuple(",".join(names[replica * ranks : (replica + 1) * ranks]) for replica in range(replicas))


def num_gpus(devices: Path = DEVICES) -> int | None:
    """Return the number of NVIDIA GPUs by the driver's files; None if unknown."""
    found = [path.name for path in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    return len(found) or None


def on_own_gpus(
    run: Callable[[int, socket.socket], None], gpus: Sequence[str], replica: int, connected: socket.socket
) -> None:
    """Run an engine process with only its replica's GPUs visible to it and its forks."""
    os.environ[VISIBLE] = gpus[replica]
    run(replica, connected)
