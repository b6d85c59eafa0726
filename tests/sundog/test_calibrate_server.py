"""`sundog calibrate URL`: loads on a running server, and a file that predicts further loads."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sundog.sim.cost.cost_file import read_cost
from sundog.sim.cost.profile import front_costs
from tests.live import EMULATED, Live, live
from tests.sundog.test_runs import TRACE, refused, sundog

WORK = """
duration_s = 60
[arrivals]
kind = "poisson"
rate_per_s = 12
[prompt]
kind = "uniform"
smallest = 16
largest = 300
[output]
kind = "uniform"
smallest = 2
largest = 24
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(*EMULATED) as found:
        yield found


@pytest.mark.long(reason="loads a server for many seconds")
def test_one_command_loads_a_server_fits_and_says_what_the_file_is_worth(
    server: Live, tmp_path: Path
) -> None:
    """Each rate as a fit to the other one predicts it, with ranges, and a file that replays use."""
    work, file = tmp_path / "work.toml", tmp_path / "server.toml"
    work.write_text(WORK)
    done = sundog("calibrate", server.url, work, "--request-rate", "5,20", "--load-seconds", 4, "-o", file)
    assert done.returncode == 0, done.stderr
    for rate in ("5/s", "20/s"):
        for name in ("TTFT", "TPOT", "E2E"):
            assert f"{rate}: {name} mean, ms" in done.stdout
    assert "measured" in done.stdout and "from" in done.stdout
    for words in (
        "mean absolute errors of loads that were left out",
        "of 6 figures lie",
        "rounds of one rate",
    ):
        assert words in done.stderr
    text = file.read_text()
    assert f"sundog calibrate {server.url} --request-rate 5,20" in text and "drift = " in text
    read_cost(file)
    front = front_costs(file)
    assert front is not None and front.request > 0
    again = sundog("replay", TRACE, "--limit", 20, "--cost", file, "--num-gpu-blocks", 9000, "--ranges")
    assert again.returncode == 0 and "milliseconds may be" in again.stdout, again.stderr


@pytest.mark.long(reason="loads a server for many seconds")
def test_loads_without_a_trace_have_lengths_of_their_own(server: Live, tmp_path: Path) -> None:
    """Prompts of up to 384 tokens, as the help says."""
    file = tmp_path / "server.toml"
    done = sundog("calibrate", server.url, "--request-rate", "8,24", "--load-seconds", 4, "-o", file)
    assert done.returncode == 0, done.stderr
    read = read_cost(file)
    assert 300 < read.measured.tokens < 2000  # type: ignore[union-attr]


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_loads_are_of_the_part_of_a_trace_that_is_asked_for(server: Live, tmp_path: Path) -> None:
    """Prompts of 3,000 tokens come later than --until, and no step holds one."""
    trace, file = tmp_path / "trace.csv", tmp_path / "server.toml"
    rows = [f"{second},{50 if second < 20 else 3000},8" for second in range(40)]
    trace.write_text("\n".join(["when,asked,answered", *rows, ""]))
    done = sundog(
        *("calibrate", server.url, trace, "--columns", "arrival=when,prompt=asked,output=answered"),
        *("--until", 20, "--request-rate", "8,24", "--load-seconds", 2, "-o", file),
    )
    assert done.returncode == 0, done.stderr
    assert 50 <= read_cost(file).measured.tokens < 1500  # type: ignore[union-attr]


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_what_cannot_be_loaded_is_refused(server: Live, tmp_path: Path) -> None:
    """In one line, before any load."""
    out = ("-o", tmp_path / "server.toml")
    rates = ("--request-rate", "2,6")
    for arguments, words in (
        ((server.url,), ("--request-rate", "as in 2,6,10")),
        ((server.url, "--request-rate", "3"), ("at least two rates",)),
        ((server.url, "--request-rate", "3,3"), ("at least two rates",)),
        ((server.url, "--request-rate", "3,inf"), ("at least two rates",)),
        ((server.url, "--request-rate", "3,x"), ("give requests a second",)),
        ((server.url, "--request-rate", "3,1e8"), ("--request-rate 1e+08", "1 to 100,000")),
        ((server.url, "--request-rate", "3,1e-6"), ("--request-rate 1e-06", "--load-seconds")),
        ((server.url, TRACE, TRACE, *rates), ("one source too many",)),
        ((server.url, tmp_path / "none.csv", *rates), ("none.csv",)),
        ((server.url, *rates, "--dtype", "float32"), ("--dtype", "leave it out")),
        ((server.url, *rates, "--until", "5"), ("--until", "none is given")),
        ((server.url, TRACE, *rates, "--from", "1e6"), ("nothing is left of the trace",)),
        ((server.url, *rates, "--bursts", "8"), ("--bursts", "as in 8,16,24, or none")),
        (("sundog-tiny", *rates), ("--request-rate", "at a URL")),
        (("sundog-tiny", "--bursts", "4,8"), ("--bursts", "at a URL")),
        (("sundog-tiny", "--sample-sessions", "0.5"), ("--sample-sessions", "at a URL")),
        (("http://127.0.0.1:9", *rates), ("127.0.0.1:9",)),
    ):
        refused(sundog("calibrate", *arguments, *out), *words)
    assert not list(tmp_path.iterdir())
