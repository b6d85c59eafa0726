"""A load that never ends, at the start and at a restart: `--load-timeout` ends and names it."""

import signal
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the engine extra is not installed")

from tests import warm
from tests.live import live
from tests.runtime.worker.test_processes import engine, gone

FAULTY = ("tests.runtime.worker.faulty_loads", "serve", "--port", "0")
LOAD_S = 15.0
"""Long enough for a load that goes on, on any machine."""


@pytest.fixture
def hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file whose words say which rank does not load."""
    monkeypatch.setenv("SUNDOG_TEST_HANGS", str(tmp_path / "hangs"))
    return tmp_path / "hangs"


def test_a_rank_that_does_not_load_ends_the_server_in_one_line(hangs: Path) -> None:
    """Which names it by what its Runner was doing, and the option."""
    hangs.write_text("1")
    done = warm.run(*FAULTY, "-tp", "2", "--dtype", "float32", "--load-timeout", "3")
    lines = [line for line in done.stderr.splitlines() if "--load-timeout" in line]
    assert done.returncode == 2 and len(lines) == 1 and "Traceback" not in done.stderr, done.stderr
    assert "the engine process " in lines[0] and "was not ready within 3 s" in lines[0]
    assert "runner-0.1: handling Load for" in lines[0]


def test_an_engine_that_does_not_load_again_is_ended_named_and_tried_again(hangs: Path) -> None:
    """The server goes on, and serves once a load ends."""
    with live(*FAULTY, "--load-timeout", str(LOAD_S)) as server:
        hangs.write_text("0")
        engine(server).send_signal(signal.SIGKILL)
        server.until_health(503)
        stuck = engine(server)
        server.until_it_says(f"was not ready within {LOAD_S:g} s")
        assert "runner-0.0: handling Load for" in "".join(server.said)
        gone([stuck])
        hangs.unlink()
        server.until_health(200)
        assert server.complete(max_tokens=4).status_code == 200
