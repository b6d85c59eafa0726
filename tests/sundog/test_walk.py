"""`sundog walk`: a request's path equals the run's files, and source references are correct."""

import html
import json
import re
import shutil
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from tests.live import live
from tests.sundog.test_runs import TRACE, refused, replay, sundog
from tests.test_layers import ROOT

TIGHT = ("--num-gpu-blocks", "120", "--max-model-len", "1900", "--max-num-seqs", "6", "--messages")
STOP = re.compile(r" +-?[\d,.]+(?: to [\d,.]+)? ms  (?:(\S+) → (\S+))? +(.+)")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a queue, preemptions and messages."""
    folder = tmp_path_factory.mktemp("runs") / "tight"
    replay(folder, *TIGHT, limit=40)
    return folder


def walked(run: Path, request_id: str) -> str:
    """The walk as text."""
    done = sundog("walk", run, request_id, "--text")
    assert done.returncode == 0, done.stderr
    return done.stdout


def wires(text: str) -> list[tuple[str, str, str]]:
    """Sender, receiver and title of each message, in order."""
    found = (STOP.fullmatch(line) for line in text.splitlines())
    return [(each[1], each[2], each[3]) for each in found if each is not None and each[1]]


def check_code(text: str) -> int:
    """Each place in the source is a line that says what is said of it; returns how many there are."""
    places = re.findall(r"(\S+\.py):(\d+) (\w+)\.(\w+)$", text, re.MULTILINE)
    for file, line, owner, method in places:
        source = (ROOT / file).read_text(encoding="utf-8").splitlines()
        assert f"class {owner}(" in "\n".join(source)
        assert source[int(line) - 1].strip().startswith(f"def {method}(" if method != "handle" else "case ")
    return len(places)


@pytest.mark.long(reason="walks long tables of runs")
def test_a_walk_is_what_the_runs_tables_say(run: Path) -> None:
    """Times, tokens, hits and preemptions of some requests; a step is counted once, folded or not."""
    num_folds = 0
    for row in parquet.read_table(run / "requests.parquet").to_pylist():
        if row["reason"] == "refused" or not (row["num_preemptions"] or row["request_id"].endswith("5")):
            continue
        text = walked(run, row["request_id"])
        for name, key in (("first scheduled", "first_scheduled_s"), ("first token", "first_token_s")):
            assert f"{name:16}{(row[key] - row['arrival_s']) * 1000:,.3f} ms" in text
        assert f"{(row['finish_s'] - row['arrival_s']) * 1000:,.3f} ms ({row['reason']})" in text
        num_preemptions = row["num_preemptions"]
        assert text.count("  preempted for ") + text.count("its own next token") == num_preemptions
        steps = re.findall(
            r"^.*(scheduler-0 → executor-0  +Batch of step|steps? [\d,]+.*: ).*\n(?:.*handle.*\n|"
            r".*_execute\n)? +its part: ([\d,]+) new token",
            text,
            re.MULTILINE,
        )
        num_decoded = sum(int(count.replace(",", "")) for _, count in steps)
        assert num_decoded + 1 + num_preemptions == row["num_output_tokens"], text
        num_folds += len(re.findall(r"steps [\d,]+ to [\d,]+: one token each", text))
    assert num_folds > 2


def test_a_walk_begins_at_the_client_and_ends_when_all_have_let_go(run: Path) -> None:
    """Through every actor, with the code of each hop."""
    table = parquet.read_table(run / "requests.parquet").to_pylist()
    row = max(table, key=lambda each: (each["num_preemptions"], each["num_output_tokens"]))
    text = walked(run, row["request_id"])
    passed = wires(text)
    assert passed[:3] == [
        ("client", "async-llm", "Generate"),
        ("async-llm", "router", "Submit"),
        ("router", "front-queue-0", "Submit"),
    ]
    assert ("scheduler-0", "async-llm") in {wire[:2] for wire in passed}
    assert ("async-llm", "router", "Released") in passed[-3:]
    assert row["num_preemptions"] > 0 and text.count("it waits") >= 1 + row["num_preemptions"]
    assert check_code(text) == len(passed) < row["num_output_tokens"]
    assert "AsyncLLM._generate" in text and "Runner.handle" in text


def test_the_page_needs_nothing_else_and_no_script(run: Path, tmp_path: Path) -> None:
    """Every stop is in the document, with its drawing and its code, and is linked; nothing is fetched."""
    page = tmp_path / "page.html"
    for _ in range(2):
        done = sundog("walk", run, "r0000003", "-o", page)
        assert (done.returncode, done.stdout.strip()) == (0, str(page)), done.stderr
    text = page.read_text()
    stops = re.findall(r'<article id="(stop-\d+)"', text)
    assert stops == re.findall(r'<a href="#(stop-\d+)"', text)
    assert len(stops) == text.count('role="img"') > 10 and text.count('class="hop"') <= len(stops)
    assert not re.findall(r"https?://|src=|@import", text)
    place = re.search(r"<code>Scheduler._plan</code>, (\S+):(\d+); it calls plan \((\S+):(\d+)\)", text)
    assert place is not None
    for file, line, words in ((place[1], place[2], "def _plan("), (place[3], place[4], "def plan(")):
        assert (ROOT / file).read_text().splitlines()[int(line) - 1].strip().startswith(words)
    assert "batch, blocked = plan(state, may_run=may_run)" in html.unescape(text)


def test_what_cannot_be_walked_names_the_way_out(run: Path, tmp_path: Path) -> None:
    """An unknown request, a run without messages, one that clients measured, and no run."""
    refused(sundog("walk", run, "0000003"), "is called '0000003'", "Did you mean r0000003?")
    bare = tmp_path / "a bare one"  # The shell takes the command as it is printed.
    replay(bare, limit=3)
    command = f"sundog replay --config '{bare / 'config.toml'}' --journal --messages --out '{bare}'"
    refused(sundog("walk", bare, "r0000000"), "no messages", command)
    refused(sundog("walk", tmp_path / "none", "r0000000"), "does not exist")


def test_a_run_whose_requests_change_engines_says_so_to_all_who_read_a_journal(tmp_path: Path) -> None:
    """Its messages are there; the command that would record them is refused, so none is named."""
    pools = ("--pool", "prefill=h100:tp1x1", "--pool", "decode=h100:tp1x1")
    folder = tmp_path / "run"
    done = sundog("replay", TRACE, "--limit", 2, *pools, "--messages", "--out", folder, "--no-ranges")
    assert done.returncode == 0 and (folder / "messages.jsonl.gz").is_file(), done.stderr
    for command in (("explain", folder), ("perfetto", folder), ("walk", folder, "r0000000")):
        done = sundog(*command)
        refused(done, "requests change engines", f"sundog report {folder}")
        assert "--journal" not in done.stderr


def test_a_request_that_no_engine_received_is_no_unknown_one(tmp_path: Path) -> None:
    """`--max-waiting` refused it at the door, as `explain --request` says."""
    full = ("--max-waiting", 2, "--max-num-seqs", 1, "--limit", 20, "--no-ranges")
    done = sundog("replay", TRACE, *full, "--messages", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    told = json.loads(sundog("explain", tmp_path / "run", "--request", "r0000004", "--json").stdout)
    assert told["reason"] == "refused"
    refused(sundog("walk", tmp_path / "run", "r0000004"), "r0000004 was refused at the door", told["refusal"])


def test_a_request_that_arrives_at_the_beginning_is_walked(tmp_path: Path) -> None:
    """Records leave out what is zero, and the instant 0 is an arrival like any other."""
    source = tmp_path / "trace.csv"
    source.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,100,10\n1,100,10\n")
    done = sundog("replay", source, "--out", tmp_path / "run", "--messages")
    assert done.returncode == 0, done.stderr
    first, second = (walked(tmp_path / "run", f"r000000{number}") for number in (0, 1))
    assert "arrived         0.000 s" in first and wires(first)[1:3] == wires(second)[1:3]
    assert ("async-llm", "router", "Submit") in wires(first)


def test_a_walk_says_that_its_record_breaks_off(run: Path, tmp_path: Path) -> None:
    """A server that was killed leaves half of its messages, and the page must not look whole."""
    cut = tmp_path / "cut"
    shutil.copytree(run, cut)
    messages = cut / "messages.jsonl.gz"
    assert "breaks off" not in sundog("walk", cut, "r0000003", "--text").stderr
    messages.write_bytes(messages.read_bytes()[: messages.stat().st_size // 2])
    done = sundog("walk", cut, "r0000003", "--text")
    assert done.returncode == 0 and f"{messages} is a part of a run: it breaks off" in done.stderr


@pytest.mark.wall_clock
def test_a_real_servers_request_is_walked_too(tmp_path: Path) -> None:
    """Its record has the server's own ids, and instants of another clock; a client's has no messages."""
    folder, measured = tmp_path / "record", tmp_path / "measured"
    with live(
        "sundog", "serve", "--port", "0", "--in-process", "--messages", "--record", str(folder)
    ) as server:
        done = sundog("bench", server.url, TRACE, "--limit", 1, "--out", measured)
        assert done.returncode == 0, done.stderr
        assert server.stop() == 0
    refused(sundog("walk", measured, "r0000000"), "clients", "--record DIR --messages")
    done = sundog("walk", folder, "r0000000")
    refused(done, "Did you mean")
    text = walked(folder, done.stderr.split("Did you mean ")[1].split("?")[0].split(",")[0])
    assert wires(text)[0] == ("client", "async-llm", "Generate") and "Runner.handle" in text
    assert check_code(text) == len(wires(text))
    began_ms, *_, ended_ms = (
        float(each.replace(",", "")) for each in re.findall(r"^ +([\d,.-]+) ms  ", text, re.M)
    )
    finished = re.search(r"finished +([\d,.]+) ms \(length\)", text)
    assert finished is not None
    assert -100 < began_ms <= 0 and ended_ms >= float(finished[1].replace(",", "")) - 0.001
