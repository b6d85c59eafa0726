"""The table of fates, row by row, on live servers in processes of their own (`docs/fates.md`)."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("torch", reason="the engine extra is not installed")

from sundog.sim.emulation.answers import TEXTS
from tests.live import EMULATED, Live, Stream, live
from tests.test_layers import ROOT

LONG = {"max_tokens": 300, "ignore_eos": True}
RESTART_S = 20.0
"""On a busy machine; on a quiet one it takes a fourth."""


@pytest.fixture(scope="module", params=["torch", "simulate"])
def server(request: pytest.FixtureRequest) -> Iterator[Live]:
    """A server that can be hurt, with one running slot; it must end well."""
    arguments = ["--simulate"] if request.param == "simulate" else []
    with live("tests.faulty_server", *arguments) as running:
        yield running
        assert running.health().status_code == 200
        assert running.stop() == 0


def is_whole(text: str, plain: str) -> bool:
    """Whether it is the answer of a request to which nothing happened; canned ones differ by id."""
    return text == plain or (len(text) > 20 and any(canned.startswith(text) for canned in TEXTS))


def test_a_row_that_fails_ends_its_request_and_no_other(server: Live) -> None:
    """With an error event and [DONE]; whoever waited behind it gets its whole answer."""
    plain = Stream(server, prompt="The fox", max_tokens=20).text
    failing = Stream(server, **LONG)
    failing.begun.wait()
    neighbour = Stream(server, prompt="The fox", max_tokens=20)
    neighbour.accepted.wait()
    server.hurt(signal.SIGUSR2)
    error = failing.whole()[-1]
    assert "injected into this row" in error["error"]["message"]
    assert is_whole(neighbour.text, plain)
    assert server.health().json() == {"status": "ok"}


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_a_crash_of_the_engine_ends_what_had_begun_and_answers_what_had_not(server: Live) -> None:
    """/health is 503 until the next core is up, within seconds; the log has one block on it."""
    plain = Stream(server, prompt="The fox", max_tokens=20).text
    begun = Stream(server, **LONG)
    begun.begun.wait()
    waiting = Stream(server, prompt="The fox", max_tokens=20)
    waiting.accepted.wait()
    server.hurt(signal.SIGUSR1)
    server.until_it_says("it is started again in")
    refused = server.complete(max_tokens=4)
    if refused.status_code != 200:  # else the next core was up already
        assert refused.status_code == 503 and int(refused.headers["Retry-After"]) >= 1
    assert server.until_health(200) < RESTART_S
    error = begun.whole()[-1]
    assert "engine failed" in error["error"]["message"]
    assert is_whole(waiting.text, plain)
    assert server.complete(max_tokens=4).status_code == 200
    block = [line for line in server.said if "engine 0 crashed" in line]
    assert len(block) == 1 and "RuntimeError: injected" in "".join(server.said)
    assert len(server.said) < 30 and "Traceback" not in "".join(server.said)


@pytest.mark.long(reason="fills a disk under a live server")
def test_a_full_disk_costs_the_records_and_nothing_else(tmp_path: Path) -> None:
    """The journal and the messages end with a warning each; answers go on, and so does the server."""
    record = ["--record", str(tmp_path), "--messages"]
    with live(*EMULATED, *record, file_limit=20_000) as server:
        for _ in range(40):
            assert server.complete(max_tokens=40, ignore_eos=True).status_code == 200
        assert server.health().status_code == 200
        warnings = [line for line in server.said if "journal-file" in line]
        assert len(warnings) == 1 and "goes on without it" in warnings[0]
        assert sum("the tap" in line for line in server.said) == 1
        server.stop()
        # But for a line a request, and one every ten seconds, of which a busy machine has more.
        said = [line for line in server.said if not line.startswith("cmpl-") and "throughput: " not in line]
        assert "Traceback" not in "".join(said) and len(said) < 12, said


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_a_disk_that_is_full_at_the_end_is_a_warning(tmp_path: Path) -> None:
    """What was still to be written when the server was told to stop fails alone; the exit code is 0."""
    with live(*EMULATED, "--record", str(tmp_path), "--messages", file_limit=1_000) as server:
        assert server.complete(max_tokens=150, ignore_eos=True).status_code == 200
        server.stop()
        said = "".join(server.said)
        assert server.process.returncode == 0, said
        assert sum("messages-0001" in line for line in server.said) == 1, said
        assert "Traceback" not in said and "sundog: " not in said, said


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("num_bytes", [5_000_000, 15_000_000])
def test_a_prompt_that_cannot_fit_holds_nobody_up(num_bytes: int) -> None:
    """It is refused by its length, and a stream beside it does not notice.

    A busy machine holds streams up, too, but not each time.
    """
    gaps_s = list[float]()
    with live(*EMULATED) as roomy:
        while len(gaps_s) < 5 and min(gaps_s, default=1.0) >= 1.0:
            stream = Stream(roomy, max_tokens=400, ignore_eos=True)
            stream.begun.wait()
            refused = roomy.complete("word " * (num_bytes // 5), max_tokens=1)
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "prompt"
            stream.whole()
            gaps_s.append(stream.longest_gap_s)
    assert min(gaps_s) < 1.0, gaps_s


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_every_process_that_ps_shows_has_its_row_in_the_table_of_fates() -> None:
    """Of a server with doors, replicas and ranks, by its name."""
    options = ("--api-processes", "2", "--tensor-parallel-size", "2", "--replicas", "2")
    with live("sundog", "serve", "--port", "0", *options) as server:
        assert server.complete(max_tokens=2).status_code == 200
        names = {each.name() for each in server.below("sundog")}
        others = psutil.Process(server.process.pid).children(recursive=True)
        assert names == {each.name() for each in others}
        kinds = {re.sub(r"[\d.]+$", "", name).strip() for name in names}
        kinds_of_table = re.findall(r"`(sundog [a-z]+)", (ROOT / "docs/fates.md").read_text())
        assert kinds <= set(kinds_of_table)
