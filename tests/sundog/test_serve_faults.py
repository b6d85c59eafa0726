"""`sundog serve --faults`: the fault file of a simulation applied to a real server's processes."""

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the engine extra is not installed")

from tests import warm
from tests.live import live

CRASH = '[[fault]]\nkind = "dead-engine"\nat_s = 0.5\nreplica = 0\ndown_s = 2\n'
SLOW = '[[fault]]\nkind = "straggler"\nat_s = 0.2\nfor_s = 1\nreplica = 0\nfactor = 4\n'

CUT = '[[fault]]\nkind = "slow-link"\nat_s = 0\nfor_s = 3\nreplica = 1\npart = 0\n'
LOST = '[[fault]]\nkind = "lost-transfer"\nrate = 1\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "faults.toml"


@pytest.mark.wall_clock
def test_a_file_kills_and_holds_up_the_processes_of_a_real_server(file: Path) -> None:
    """The log has each fault, and how long the replica was down; it serves again."""
    file.write_text(SLOW + CRASH)
    with live("sundog", "serve", "--port", "0", "--faults", str(file)) as server:
        statuses = set[int]()
        while not any("is up again, " in line for line in server.said):
            statuses.add(server.complete(max_tokens=100, ignore_eos=True).status_code)
        server.until_it_says("replica 0 goes on at its own pace")
        assert server.complete(max_tokens=4).status_code == 200 and statuses <= {200, 500, 503}
        server.until_it_says("a fault: replica 0 takes 4 times as long")
        server.until_it_says(", of replica 0, is killed")
        server.until_it_says("was killed by SIGKILL (signal 9)")
        assert server.stop() == 0


@pytest.mark.wall_clock
def test_a_file_cuts_links_between_pools_and_loses_transfers(file: Path) -> None:
    """A request waits until the link is there again, is lost three times, and ends with an error."""
    file.write_text(CUT + LOST)
    pools = ("--pool", "prefill=cpu:x1", "--pool", "decode=cpu:x1")
    with live("sundog", "serve", "--port", "0", *pools, "--faults", str(file)) as server:
        assert server.complete(max_tokens=4).status_code == 500
        heard = [line for line in server.said if "their speed" in line or "is lost on its way" in line]
        assert ["no more: " in line for line in heard[:2]] == [False, True], server.said
        assert len(heard) == 5 and all("a fault of the run" in line for line in heard[2:])
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("written", "named"),
    [
        (
            '[[fault]]\nkind = "spike"\nat_s = 1\nfor_s = 1\nfactor = 2\n',
            "spike applies to simulated clients only",
        ),
        (
            '[[fault]]\nkind = "slow-link"\nat_s = 1\nfor_s = 1\nreplica = 0\npart = 0\n',
            "slow-link applies to links between pools: give --pool prefill",
        ),
        (SLOW.replace("factor = 4", "factor = 50"), "factor is 50"),
        (CRASH.replace("replica = 0", "replica = 7"), "replica 7: give 0 to 0"),
        (CRASH.replace("down_s", "down"), "down"),
    ],
)
def test_what_cannot_be_done_for_real_is_refused_by_name(file: Path, written: str, named: str) -> None:
    """Before any model is loaded."""
    file.write_text(written)
    done = warm.run("sundog", "serve", "--port", "0", "--faults", str(file))
    assert done.returncode == 2 and named in done.stderr and len(done.stderr.splitlines()) == 1


def test_faults_are_of_processes_of_this_machine(file: Path) -> None:
    """With --in-process there is none to kill but the server's own."""
    file.write_text(CRASH)
    done = warm.run("sundog", "serve", "--port", "0", "--in-process", "--faults", str(file))
    assert done.returncode == 2 and "leave --on and --in-process out" in done.stderr
