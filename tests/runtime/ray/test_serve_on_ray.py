"""`serve --on ray`: replicas as actors in two worker processes of a cluster, which are killed by real
signals.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.live import START_S, STOP_S, Live, Stream, live
from tests.processes import below, gone, is_there

pytestmark = pytest.mark.ray
SERVE = ("sundog", "serve", "--port", "0", "--max-num-seqs", "2", "--debug", "--stall-timeout", "3")
Kind = Callable[[int], list[psutil.Process]]
LONG = {"max_tokens": 400, "ignore_eos": True}
SOON_S = 240.0
TEXT = " there was a brave dog named Ruby who lived in a cave behind a waterfall."
"""What the embedded model says in float32; a process alone says the same."""


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    """Two replicas on a cluster that it begins itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_AUTH_MODE")
        patch.delenv("RAY_AUTH_TOKEN")
        with live(*SERVE, "--on", "ray", "--replicas", "2") as running:
            yield running


def processes(pid: int) -> list[psutil.Process]:
    return [each for each in psutil.Process(pid).children(recursive=True) if is_there(each)]


def engines(pid: int) -> list[psutil.Process]:
    """Engine processes below this process."""
    return below(pid, r"sundog engine \d")


def actors(pid: int) -> list[psutil.Process]:
    """Ray's processes that engines are forked from, below this process."""
    return below(pid, ".*EngineActor")


def status(server: Live) -> str:
    """What /health says of the replicas."""
    return str(server.health().json()["status"])


def until_status(server: Live, wanted: str) -> None:
    deadline_s = time.monotonic() + SOON_S
    while status(server) != wanted:
        assert time.monotonic() < deadline_s, f"/health is {status(server)} and never {wanted}: {server.said}"
        time.sleep(0.02)


def lose_one(server: Live, number: signal.Signals, kind: Kind = engines) -> int:
    """Hurt an engine, or what it was forked from; what had begun there ends, the rest is answered.

    Returns the process that was hurt.
    """
    plain = server.complete("The fox", max_tokens=20).json()["choices"][0]["text"]
    begun = [Stream(server, prompt="The fox", **LONG) for _ in range(4)]
    for stream in begun:
        stream.begun.wait()
    waiting = [Stream(server, prompt="The fox", max_tokens=20) for _ in range(4)]
    for stream in waiting:
        stream.accepted.wait()
    hurt = kind(server.process.pid)[0]
    hurt.send_signal(number)
    until_status(server, "degraded")
    assert server.complete("The fox", max_tokens=20).json()["choices"][0]["text"] == plain
    until_status(server, "ok")
    ends = [stream.whole()[-1] for stream in begun]
    assert len([end for end in ends if "engine failed" in end.get("error", {}).get("message", "")]) == 2
    assert [stream.text for stream in waiting] == [plain] * 4
    left = kind(server.process.pid)
    assert len(left) == 2 and hurt not in left
    return int(hurt.pid)


def test_a_killed_replica_comes_back_and_the_other_serves_meanwhile(server: Live) -> None:
    """kill -9: what had begun ends with an error, what had not is answered in full by the other."""
    before = actors(server.process.pid)
    lost = lose_one(server, signal.SIGKILL)
    said = "".join(server.said)
    assert f"EngineProcessDied: the engine process {lost} on node " in said and "Traceback" not in said
    assert "was killed by SIGKILL (signal 9); the link ended" in said
    assert actors(server.process.pid) == before


def test_a_killed_process_of_ray_takes_its_engine_along_and_both_come_back(server: Live) -> None:
    """Ray begins it again, and it another engine."""
    before = engines(server.process.pid)
    lose_one(server, signal.SIGKILL, actors)
    assert len(set(before) - set(engines(server.process.pid))) == 1
    assert "Traceback" not in "".join(server.said)


def test_a_replica_that_is_stopped_is_noticed_and_replaced(server: Live) -> None:
    """SIGSTOP: the same watchdog as everywhere; Ray would not notice."""
    lose_one(server, signal.SIGSTOP)
    assert "EngineStalled: the engine process gave no sign of life for" in "".join(server.said)


def test_a_local_cluster_ends_with_a_server_that_is_killed(server: Live) -> None:
    """kill -9 leaves no process and no folder. The last test of this server."""
    left = processes(server.process.pid)
    keeper, *_ = [each for each in left if "sundog.runtime.ray.keeper" in each.cmdline()]
    folder = Path(keeper.cmdline()[-2])
    assert folder.is_dir() and len(engines(server.process.pid)) == 2
    server.hurt(signal.SIGKILL)
    server.process.wait(STOP_S)
    gone(left)
    assert not folder.exists()


def test_ranks_of_replicas_are_placed_and_replaced_together() -> None:
    """The same text as of one process; a killed rank is named, its replica comes back, the other answers."""
    with live(*SERVE, "--on", "ray", "--replicas", "2", "-tp", "2", "--dtype", "float32") as server:
        assert server.complete(max_tokens=16).json()["choices"][0]["text"] == TEXT
        ranks = below(server.process.pid, "sundog rank")
        assert sorted(each.name() for each in ranks) == ["sundog rank 0.1", "sundog rank 1.1"]
        assert {each.ppid() for each in ranks} == {each.pid for each in engines(server.process.pid)}
        before = actors(server.process.pid)
        ranks[0].kill()
        until_status(server, "degraded")
        assert server.complete(max_tokens=16).json()["choices"][0]["text"] == TEXT
        until_status(server, "ok")
        texts = {server.complete(max_tokens=16).json()["choices"][0]["text"] for _ in range(2)}
        said = "".join(server.said)
        assert f"RankLost: rank 1 (process {ranks[0].pid}) was killed by SIGKILL (signal 9)" in said
        assert texts == {TEXT} and "Traceback" not in said and actors(server.process.pid) == before
        left = processes(server.process.pid)
        assert server.stop() == 0
        gone(left)


@contextmanager
def cluster() -> Iterator[tuple[str, int]]:
    """A cluster that is there: its address, and a process that is above all of it."""
    code = (
        "import sys, ray; r = ray.init(address='local', num_cpus=2, include_dashboard=False,"
        " object_store_memory=10**8, log_to_driver=False, logging_level='ERROR');"
        " print(r.address_info['gcs_address'], flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdin is not None and holder.stdout is not None
    try:
        yield holder.stdout.readline().strip(), holder.pid
    finally:
        holder.stdin.close()
        holder.stdout.close()
        holder.wait(STOP_S)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a cluster needs no token."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")


@pytest.mark.usefixtures("environment")
def test_a_cluster_that_was_there_stays_and_has_no_actor_of_ours_left(tmp_path: Path) -> None:
    """Its server is stopped, and another refused: one asks for more than there is, one for no model."""
    with cluster() as (address, holder):
        with live(*SERVE, "--on", f"ray:{address}") as server:
            assert server.complete("The fox", max_tokens=20).status_code == 200
            (engine,) = engines(holder)
            assert server.stop() == 0
            gone([engine])
        done = sundog_serve("--on", f"ray:{address}", "--ray-cpus", "64", "--ray-wait", "1")
        assert done.returncode == 2 and "no node had 64 CPU free for engine 0 within 1 s" in done.stderr
        assert not [each for each in engines(holder) if is_there(each)]
        assert below(holder, ".*raylet")


def sundog_serve(*options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", *SERVE, *options], capture_output=True, text=True, check=False, timeout=START_S
    )
