"""Each replica's own GPUs, set by environment variables; no GPU is needed."""

import os
import socket
import sys
from pathlib import Path

import pytest

from sundog.actors.config import ConfigError
from sundog.runtime.host.devices import VISIBLE, gpus_of, num_gpus
from sundog.runtime.worker.forks import Forks
from tests import warm


@pytest.mark.parametrize(
    ("replicas", "ranks", "visible", "num_gpus", "gpus"),
    [
        (2, 1, None, 2, ("0", "1")),
        (2, 2, None, 8, ("0,1", "2,3")),
        (2, 2, None, None, ("0,1", "2,3")),
        (3, 1, "5, 3,GPU-8f6", 1, ("5", "3", "GPU-8f6")),
        (2, 2, "7,6,5,4", None, ("7,6", "5,4")),
    ],
)
def test_no_gpu_is_of_two_replicas(
    replicas: int, ranks: int, visible: str | None, num_gpus: int | None, gpus: tuple[str, ...]
) -> None:
    """In the order of the machine, or of what the server itself was given."""
    assert gpus_of(replicas, ranks, visible, num_gpus) == gpus


@pytest.mark.parametrize(
    ("ranks", "visible", "has"),
    [
        (1, None, "2 GPUs, and this machine has 1"),
        (2, "0,1,2", "4 GPUs, and CUDA_VISIBLE_DEVICES .* names 3"),
    ],
)
def test_fewer_gpus_than_replicas_need_are_refused(ranks: int, visible: str | None, has: str) -> None:
    """By what there is, and with what can be done."""
    with pytest.raises(ConfigError, match=f"--replicas is 2: .*need {has}; lower it"):
        gpus_of(2, ranks, visible, 1)


def test_gpus_are_counted_by_the_files_of_their_driver(tmp_path: Path) -> None:
    """Without a call of the driver, which no process must have made that forks."""
    assert num_gpus(tmp_path) is None
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert num_gpus(tmp_path) == 3


@pytest.mark.wall_clock
async def test_a_forked_engine_sees_the_gpus_of_its_replica_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two ranks each, and again when a replica begins anew; the server's own are left as they were."""
    monkeypatch.setenv(VISIBLE, "3,2,1,0")
    forks = Forks([sys.executable, "-m", "tests.runtime.worker.says_gpus", "2", "2"], b"")
    forks.start()
    try:
        seen = []
        for replica in (0, 1, 0):
            ours, theirs = socket.socketpair()
            with ours, theirs:
                child = await forks.fork(replica, theirs)
                ours.setblocking(True)
                seen.append(ours.recv(100).decode())
                assert await child.ended() == "exited with code 0"
    finally:
        forks.close()
    assert seen == ["3,2", "1,0", "3,2"] and os.environ[VISIBLE] == "3,2,1,0"


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_server_with_fewer_gpus_than_replicas_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the command line, on a machine with or without any."""
    monkeypatch.setenv(VISIBLE, "0")
    done = warm.run("sundog", "serve", "--port", "0", "--replicas", "2", "--device", "cuda")
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "--replicas is 2: replicas need 2 GPUs, and CUDA_VISIBLE_DEVICES (0) names 1" in line
