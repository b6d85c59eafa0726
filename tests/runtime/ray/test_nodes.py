"""Replicas on several nodes of a cluster, all on this machine: one node is lost, and one joins."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.live import STOP_S, Live, live
from tests.runtime.ray.test_serve_on_ray import SERVE, engines, until_status

pytestmark = pytest.mark.ray

NODES = """
import sys
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
nodes = []
print(cluster.address, flush=True)
for line in sys.stdin:
    if line.strip() == "join":
        nodes.append(cluster.add_node(num_cpus=1, object_store_memory=10**8))
    else:
        cluster.remove_node(nodes.pop(int(line)), allow_graceful=False)
    print("done", flush=True)
cluster.shutdown()
"""


class Nodes:
    """A cluster whose head has no CPU for engines; nodes with one each join and leave."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.address = self._said()

    def join(self) -> None:
        self._ask("join")

    def lose(self, number: int) -> None:
        """Kill all processes of a node at once."""
        self._ask(str(number))

    def _ask(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        assert self._said() == "done"

    def _said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def cluster() -> Iterator[Nodes]:
    process = subprocess.Popen(
        [sys.executable, "-c", NODES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield Nodes(process)
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(STOP_S)


def raylets(pid: int) -> dict[int, int]:
    """Each engine's process, and the raylet of the node that it is on."""
    above = {}
    for each in engines(pid):
        above[each.pid] = next(parent.pid for parent in each.parents() if "raylet" in parent.name())
    return above


def texts(server: Live, number: int = 4) -> set[str]:
    return {server.complete("The fox", max_tokens=8).json()["choices"][0]["text"] for _ in range(number)}


def test_a_lost_node_costs_its_replica_alone_which_comes_back_when_another_joins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Replicas are on a node each; their links are TCP with a secret; the other serves meanwhile."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with cluster() as nodes:
        nodes.join()
        nodes.join()
        pid = nodes.process.pid
        with live(*SERVE, "--on", f"ray:{nodes.address}", "--replicas", "2") as server:
            before = raylets(pid)
            assert len(before) == 2 and len(set(before.values())) == 2
            (text,) = texts(server)
            nodes.lose(0)
            until_status(server, "degraded")
            left = raylets(pid)
            assert len(left) == 1 and left.items() < before.items()
            assert texts(server) == {text}
            nodes.join()
            until_status(server, "ok")
            after = raylets(pid)
            assert len(set(after.values())) == 2 and left.items() < after.items()
            assert texts(server) == {text}
            assert server.stop() == 0
