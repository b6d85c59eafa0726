"""Emulated fleet that its scaler grows and shrinks: `sundog emulate --scaler`."""

import json
import re
import threading
import time
from pathlib import Path

import httpx
import pytest

from sundog.sim.trace.jsonl_rows import write_trace
from sundog.sim.trace.record import TraceRequest
from tests import warm
from tests.live import EMULATED, Live, live
from tests.patience import START_S

SCALES = (
    *("--replicas", "4", "--scaler", "keda:target=4,down_s=20"),
    *("--scale-every-s", "5", "--scale-start-s", "8", "--no-enable-prefix-caching"),
    *("--step-scale", "20"),
)
TIMES = 10
ROWS = [TraceRequest(f"r{n}", 10.0 + (n if n < 20 else 10 + n / 2), 200, 60) for n in range(60)]
"""Steps take a fifth of a second, a request some 12 s; after 20 s twice as many arrive."""


def wanted_at(changes: list[tuple[float, int]], time_s: float) -> int:
    return [wanted for begin_s, wanted in changes if begin_s <= time_s][-1]


def play(server: Live, ready_s: float) -> None:
    """Send the rows at their times, by the server's clock, which began at `ready_s` of ours."""
    threads, client = [], httpx.Client(base_url=server.url, timeout=START_S, limits=httpx.Limits())

    def ask(body: dict[str, object]) -> None:
        assert client.post("/v1/completions", json=body).status_code == 200

    for row in ROWS:
        time.sleep(max(ready_s + row.arrival_s / TIMES - time.monotonic(), 0))
        fields = {"max_tokens": row.num_output_tokens, "ignore_eos": True}
        prompt = list(range(300, 300 + row.num_prompt_tokens))
        threads.append(threading.Thread(target=ask, args=({"prompt": prompt, **fields},)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    client.close()


def until_one_is_wanted(server: Live) -> None:
    """Wait for the fleet to shrink, as nothing comes any more."""
    begun_s = time.monotonic()
    while "1 replica is wanted at" not in [line for line in server.said if "wanted at" in line][-1]:
        assert time.monotonic() - begun_s < START_S, server.said
        time.sleep(0.05)


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
@pytest.mark.wall_clock
def test_an_emulated_fleet_grows_and_shrinks_as_the_simulated_one(tmp_path: Path) -> None:
    """Of the seconds from the first request on, at most 5 % have another number of replicas."""
    write_trace(path := str(tmp_path / "trace.jsonl"), ROWS, provenance="test")
    done = warm.run("sundog", "replay", path, *EMULATED[4:], *SCALES, "--json")
    assert done.returncode == 0, done.stderr
    expected = [tuple(each) for each in json.loads(done.stdout)["fleet"]["scaling"]["changes"]]
    with live(*EMULATED, *SCALES, "--time-scale", str(TIMES)) as server:
        server.until_it_says("1 replica is wanted at")
        said = [line for line in server.said if "1 replica is wanted at" in line]
        begun_s = float(re.findall(r"at ([\d.]+) s", said[0])[0])
        play(server, time.monotonic() - begun_s / TIMES)
        until_one_is_wanted(server)
        assert server.stop() == 0
        lines = [re.search(r"(\d+) replicas? (?:is|are) wanted at ([\d.]+) s", line) for line in server.said]
    changes = [(float(found[2]) - begun_s, int(found[1])) for found in lines if found]
    assert max(count for _, count in changes) >= 3 and changes[-1][1] == 1, changes
    instants = [0.5 * n for n in range(2 * int(ROWS[-1].arrival_s))]
    others = sum(wanted_at(changes, each) != wanted_at(expected, each) for each in instants)
    assert others <= 0.05 * len(instants), (changes, expected)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--replicas", "2", "--scaler", "kedda"), "kedda"),
        (("--replicas", "2", "--scaler", "keda", "--scale-least", "3"), "--scale-least is 3"),
    ],
)
def test_a_scaler_that_cannot_be_is_refused_in_one_line(options: tuple[str, ...], words: str) -> None:
    done = warm.run(*EMULATED, *options)
    assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
