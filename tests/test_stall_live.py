"""A user policy that never returns, in a live `sundog emulate`: the process ends, and names the place."""

import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.live import EMULATED, Live, live
from tests.patience import STOP_S

pytest.importorskip("quart", reason="the serve extra is not installed")

LOOPS = """from sundog.actors.core.policies import Policy

class Loops(Policy):
    def rank(self, request, view):
        return self.weight(request)

    def weight(self, request):
        while request.submit.tenant == "stuck":
            pass
        return 0
"""


def stuck(server: Live) -> None:
    """Send a request whose rank never comes; that the server ends takes its answer."""

    def ask() -> None:
        with suppress(Exception):  # the connection breaks
            server.complete(max_tokens=2, tenant="stuck")

    assert server.complete(max_tokens=2, tenant="other").status_code == 200
    threading.Thread(target=ask, daemon=True).start()
    time.sleep(0.5)


@pytest.fixture
def policy(tmp_path: Path) -> str:
    file = tmp_path / "loops.py"
    file.write_text(LOOPS)
    return f"{file}:Loops"


def test_a_server_whose_policy_never_answers_ends_after_the_stall_timeout(policy: str) -> None:
    """With one line that names the file and the method that was called, and the line where it is."""
    with live(*EMULATED, "--policy", policy, "--stall-timeout", "2") as server:
        stuck(server)
        assert server.ended() == 1
        (line,) = [line for line in server.said if "does not go on" in line]
        file = policy.partition(":")[0]
        assert f"policy {file}: rank does not answer (line " in line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_stop_ends_a_server_whose_policy_never_answers(policy: str, number: int) -> None:
    """Within seconds, however long the stall timeout is."""
    with live(*EMULATED, "--policy", policy, "--stall-timeout", "600") as server:
        stuck(server)
        start_s = time.monotonic()
        server.hurt(signal.Signals(number))
        assert server.ended() == 1
        assert time.monotonic() - start_s < STOP_S
        assert any("rank does not answer" in line for line in server.said)


def test_a_server_that_was_stopped_for_a_while_goes_on(policy: str) -> None:
    """Time in which the whole process stood still is no stall."""
    with live(*EMULATED, "--policy", policy, "--stall-timeout", "1") as server:
        server.hurt(signal.SIGSTOP)
        time.sleep(3)
        server.hurt(signal.SIGCONT)
        assert server.complete(max_tokens=2, tenant="other").status_code == 200
        time.sleep(1)
        assert server.complete(max_tokens=2, tenant="other").status_code == 200
        assert server.stop() == 0
