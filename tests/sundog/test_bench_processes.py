"""`sundog bench --processes N`: one load by several processes, merged as if one had sent it."""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # ships no types
import pyarrow.parquet as pq
import pytest

from sundog.actors.config import ConfigError
from sundog.builds.load_processes import interrupt_held, shares_of
from sundog.sim.record.run_directory import open_run
from sundog.sim.trace.jsonl_rows import write_trace
from sundog.sim.trace.record import TraceRequest
from sundog.sim.trace.sessions import whole_sessions
from tests.live import EMULATED, Live, live
from tests.patience import START_S
from tests.sundog.test_bench import WORK, until_busy
from tests.sundog.test_runs import names, refused, sundog


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(*EMULATED) as found:
        yield found


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 requests that begin alike, six of them of two sessions."""
    path = tmp_path_factory.mktemp("work") / "trace.jsonl"
    rows = [
        TraceRequest(f"q{i}", i * 0.05, 48, 4, hash_ids=(1, 2, 100 + i), hash_block_tokens=16)
        for i in range(18)
    ]
    for name in ("a", "b"):
        for turn in range(3):
            after = (f"{name}{turn - 1}",) if turn else ()
            rows.append(
                TraceRequest(
                    f"{name}{turn}", 0.9, 32, 4, session=name, after=after, pause_s=0.01 * bool(turn)
                )
            )
    write_trace(str(path), rows, provenance="test", hash_block_tokens=16)
    return path


def long_work(folder: Path) -> Path:
    path = folder / "slow.toml"
    path.write_text(WORK.replace("duration_s = 2", "duration_s = 600"))
    return path


def begun(server: Live, *arguments: object) -> "subprocess.Popen[str]":
    """A bench by two processes, under way."""
    command = [sys.executable, "-m", "sundog", "bench", server.url, *map(str, arguments), "--processes", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until_busy(server, process)
    return process


def children(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """The processes of clients; the other child tracks resources for Python."""
    found = psutil.Process(process.pid).children()
    return [child for child in found if "spawn_main" in " ".join(child.cmdline())]


def until_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=START_S)
    assert not alive


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_several_processes_leave_the_run_of_one(server: Live, trace: Path, tmp_path: Path) -> None:
    """The same requests, due at the same instants of one clock, in a folder of the same form."""
    found = []
    for count in (1, 3):
        folder = tmp_path / str(count)
        done = sundog("bench", server.url, trace, "--out", folder, "--processes", count)
        assert done.returncode == 0, done.stderr
        assert f"{count}, " in next(line for line in done.stdout.splitlines() if "client processes" in line)
        table = pq.read_table(folder / "requests.parquet")
        rows = sorted(table.to_pylist(), key=lambda row: row["request_id"])
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["num_finished"] == 24 and summary["client"]["num_processes"] == count
        assert summary["client"]["lateness_s"]["count"] == 24
        assert 0 < summary["client"]["cpu_mean"] <= summary["client"]["cpu_most"]
        due = [(row["request_id"], row["arrival_s"]) for row in rows if row["request_id"].startswith("q")]
        assert table["arrival_s"].to_pylist() == sorted(table["arrival_s"].to_pylist())
        found.append((names(folder), table.schema, due, summary["prefix_hit_tokens"] >= 32 * 15))
        ends = {row["request_id"]: row["finish_s"] for row in rows}
        begins = {row["request_id"]: row["arrival_s"] for row in rows}
        for name in ("a", "b"):
            assert ends[f"{name}0"] < begins[f"{name}1"] and ends[f"{name}1"] < begins[f"{name}2"]
    assert found[0] == found[1]
    assert found[0][3], "prompts that begin alike must do so in all processes"


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_run_is_run_again_with_its_processes(server: Live, trace: Path, tmp_path: Path) -> None:
    """They are a part of its config."""
    assert sundog("bench", server.url, trace, "-o", tmp_path / "a", "--processes", 2).returncode == 0
    assert "processes = 2" in (tmp_path / "a" / "config.toml").read_text()


def test_what_cannot_be_shared_is_refused_before_anything_is_asked(trace: Path) -> None:
    """In one line; there is no server at all."""
    for arguments, words in (
        (("--processes", 0), ("--processes is 0", "from 1 to 256")),
        (("--processes", 300), ("--processes is 300",)),
        (("--processes", "two"), ("--processes is two",)),
        (("--processes", 21), ("has 20 requests or sessions", "give 20 at most")),
        (("--processes", 3, "--limit", 2), ("give 2 at most",)),
        (("--processes", 3, "--clients", 2), ("--clients 2", "each process needs a client")),
    ):
        refused(sundog("bench", "http://127.0.0.1:1", trace, *arguments), *words)


def test_a_closed_loop_has_all_its_clients_in_whole(server: Live, trace: Path) -> None:
    """Seven clients in three processes are three, two and two."""
    rows = [TraceRequest(str(i), 0.0, 4, 1) for i in range(9)]
    assert shares_of(rows, 3, 7)[1] == [3, 2, 2]
    done = sundog("bench", server.url, trace, "--clients", 3, "--processes", 2, "--json")
    assert json.loads(done.stdout)["num_finished"] == 24


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_ctrl_c_keeps_what_is_done_in_all_processes(server: Live, tmp_path: Path) -> None:
    """As with one; and all of them end."""
    process = begun(server, long_work(tmp_path), "--out", tmp_path / "run")
    # The server says that it has answered before the client has read it: of the first five all are read.
    until_busy(server, process)
    clients = children(process)
    assert len(clients) == 2
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130 and "interrupted after" in said, said
    assert names(tmp_path) == ["run.partial", "slow.toml"]
    assert open_run(tmp_path / "run.partial").remark is not None
    rows = pq.read_table(tmp_path / "run.partial" / "requests.parquet").to_pylist()
    assert len([row for row in rows if row["reason"] in ("stop", "length")]) >= 5
    until_gone(clients)


def test_an_interrupt_comes_after_what_was_received_is_taken() -> None:
    """The second one is not held back: nothing that hangs can outlast it."""
    taken = []
    with pytest.raises(KeyboardInterrupt):
        with interrupt_held():
            signal.raise_signal(signal.SIGINT)
            taken.append("first")
        taken.append("too late")
    with pytest.raises(KeyboardInterrupt), interrupt_held():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        taken.append("too late")
    assert taken == ["first"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_a_process_that_is_killed_ends_the_load_in_one_line(server: Live, tmp_path: Path) -> None:
    """What the others did is kept, as a part."""
    process = begun(server, long_work(tmp_path), "--out", tmp_path / "run")
    clients = children(process)
    clients[0].kill()
    _, said = process.communicate(timeout=120)
    *before, last = said.strip().splitlines()
    assert process.returncode == 2 and "of 2 of the load ended with SIGKILL" in last, said
    assert all(line.startswith("the run broke off") for line in before), said
    assert names(tmp_path) == ["run.partial", "slow.toml"]
    until_gone(clients)


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_processes_end_with_the_one_that_began_them(server: Live, tmp_path: Path) -> None:
    """However it ends."""
    process = begun(server, long_work(tmp_path))
    clients = children(process)
    process.kill()
    process.communicate(timeout=120)
    until_gone(clients)


@pytest.mark.long(
    rare=True, reason="ten seconds without a server; test_clients has the law on the virtual clock"
)
def test_a_server_that_has_gone_ends_all_processes(tmp_path: Path) -> None:
    """In one line, and with what was answered before."""
    with live(*EMULATED) as server:
        process = begun(server, long_work(tmp_path), "--out", tmp_path / "run")
        server.process.kill()
        _, said = process.communicate(timeout=120)
    assert process.returncode == 2 and "the server is gone" in said, said
    assert names(tmp_path) == ["run.partial", "slow.toml"]


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_a_server_that_dies_is_errors_by_kind(tmp_path: Path) -> None:
    """Of the requests of every process."""
    work = tmp_path / "work.toml"
    work.write_text(WORK)
    with live(*EMULATED) as server:
        process = begun(server, work, "--scale", 0.5, "--json")
        server.process.kill()
        found = json.loads(process.communicate(timeout=120)[0])
    errors = found["client"]["errors"]
    assert process.returncode == 0
    assert errors.keys() <= {"no connection", "cut stream", "connection lost"} and errors["no connection"]
    assert found["num_finished"] + sum(errors.values()) == found["num_requests"]


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_a_late_client_says_that_it_may_be_what_was_measured(server: Live, trace: Path) -> None:
    """Clients that are stopped for a while send late."""
    stopped = begun(server, trace, "--scale", 0.2)
    clients = children(stopped)
    for client in clients:
        client.suspend()
    time.sleep(1.0)
    for client in clients:
        client.resume()
    _, said = stopped.communicate(timeout=120)
    assert stopped.returncode == 0
    assert "the client may have limited this measurement" in said and "other programs use its cores" in said


@pytest.mark.parametrize("seed", range(30))
def test_no_session_is_parted(seed: int) -> None:
    """Nor rows that come after one another; every row is in one share, in the order of the trace."""
    rng = random.Random(seed)
    rows: list[TraceRequest] = []
    for index in range(60):
        session = rng.choice([None, *"abcdefgh"])
        earlier = [row.request_id for row in rows if row.session is not None]
        after = tuple(rng.sample(earlier, min(len(earlier), rng.choice((0, 0, 0, 1, 2))))) if session else ()
        rows.append(
            TraceRequest(f"r{index}", float(index), rng.randint(1, 99), 1, session=session, after=after)
        )
    count = min(len(whole_sessions(rows)), rng.randint(1, 6))
    shares, _ = shares_of(rows, count, None)
    place = {row.request_id: number for number, share in enumerate(shares) for row in share}
    assert sorted(place) == sorted(row.request_id for row in rows) and sum(map(len, shares)) == len(rows)
    assert all(shares)
    sessions: dict[str, int] = {}
    for row in rows:
        for name in row.after:
            assert place[name] == place[row.request_id]
        if row.session is not None:
            assert sessions.setdefault(row.session, place[row.request_id]) == place[row.request_id]
    for share in shares:
        assert [row.arrival_s for row in share] == sorted(row.arrival_s for row in share)
    if len(whole_sessions(rows)) < 60:
        with pytest.raises(ConfigError, match="requests or sessions that can be apart"):
            shares_of(rows, len(whole_sessions(rows)) + 1, None)
