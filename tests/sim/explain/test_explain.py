"""Laws of `sundog explain`: phases tile requests, causes are those recorded, pages say so."""

import json
import math
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from sundog.actors.config import EngineConfig
from sundog.actors.config.front_costs import FrontCosts
from sundog.actors.messages import Capacity
from sundog.cli import main
from sundog.commands.explain import explain as command
from sundog.sim.cost.calibrated import Calibrated
from sundog.sim.explain.data import run_data
from sundog.sim.explain.findings import causes, findings
from sundog.sim.explain.history import History
from sundog.sim.explain.load import find_request, load
from sundog.sim.explain.phases import FRONT_END, UNDER_WAY, phases, totals
from sundog.sim.record.journal import Journal
from sundog.sim.record.journal_file import JournalFile
from sundog.sim.record.journal_rows import Header, JournalError, JournalStep
from sundog.sim.record.recorder import Recorder
from sundog.sim.replay import replay
from sundog.sim.schedule.decision_log import RecordedOutputs
from sundog.sim.schedule.driver import Driver, Happening, HasPlanned
from sundog.sim.schedule.step_trace import parse_trace
from sundog.sim.show.console import console_for
from sundog.sim.show.explained_request import RequestPage
from sundog.sim.show.explained_run import print_run
from sundog.sim.trace.record import TraceRequest
from tests.core.test_golden import NAMES
from tests.core.test_golden import read as read_golden
from tests.sim.explain.golden_log import golden_history, log_records
from tests.sim.record.test_journal_file import BLOCKS, SEEDS, record

HEAVY = "02_heavy_preempt"


def explain(
    record: Path, request_id: str | None = None, *, top: int = 10, every: bool = False, as_json: bool = False
) -> None:
    """The command line's own."""
    given = {"--request": request_id, "--top": top}
    options = [text for name, value in given.items() if value is not None for text in (name, str(value))]
    flags = [name for name, wanted in {"--all": every, "--json": as_json}.items() if wanted]
    command.main([str(record), *options, *flags], standalone_mode=False)


@pytest.fixture(params=SEEDS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Journal, History]:
    """A crowded replay: what was said, and its history as read from disk."""
    return record(tmp_path, request.param), load(tmp_path)


def golden(name: str) -> History:
    """What vLLM's own scheduler decided; a step lasts a second."""
    trace, log = read_golden(name)
    return golden_history(trace, map(json.loads, log))


def check_tiling(history: History) -> None:
    for request in history.requests.values():
        found = phases(history, request)
        end_s = request.end_s if request.end_s is not None else found[-1].end_s
        assert all(phase.seconds > 0 for phase in found)
        assert all(one.end_s == other.start_s for one, other in pairwise(found)), request
        if found:
            assert (found[0].start_s, found[-1].end_s) == (request.arrival.time_s, end_s)
        assert math.isclose(sum(totals(found).values()), end_s - request.arrival.time_s, abs_tol=1e-9)


def test_phases_tile_a_life(run: tuple[Journal, History]) -> None:
    """Without gap or overlap, from arrival to end; so the totals add up to it."""
    check_tiling(run[1])


def test_phases_tile_a_life_in_the_goldens() -> None:
    """With async scheduling, aborts, resets and priorities too."""
    for name in NAMES:
        check_tiling(golden(name))


def test_waiting_for_an_api_process_is_told_from_waiting_for_a_step(tmp_path: Path) -> None:
    """Two at once, 10 ms each: the second waits 20 ms for the process, and then for the step of 15 ms."""
    config = EngineConfig(decode_runs=True, front=FrontCosts(request=0.01))
    journal = JournalFile(tmp_path, Header.of(config, 1000))
    rows = [TraceRequest(name, 0.0, 10, 5) for name in ("a", "b")]
    replay(rows, config, Calibrated(0.015, 0, 0, 0, 0), Capacity(1000, 16), listeners=[journal])
    history = load(tmp_path)
    check_tiling(history)
    waits = {
        name: {phase.reason: phase.seconds for phase in phases(history, request) if phase.kind == "waiting"}
        for name, request in history.requests.items()
    }
    assert waits["a"] == pytest.approx({FRONT_END: 0.01})
    assert waits["b"] == pytest.approx({FRONT_END: 0.02, UNDER_WAY: 0.005}, abs=1e-6)
    assert causes(history).seconds == pytest.approx({FRONT_END: 0.03, UNDER_WAY: 0.005}, abs=1e-6)
    assert any("for an API process" in text for text in findings(history, 1).suggestions)


def test_causes_are_those_recorded(run: tuple[Journal, History]) -> None:
    """Each step in which a request waited blames it on what the scheduler said of that step."""
    heard, history = run
    for request in history.requests.values():
        outputs = [o for o in heard.outputs if o.replica == request.replica]
        for wait in request.waits:
            said: dict[tuple[str, bool], int] = defaultdict(int)
            for output in outputs[wait.first : wait.stop]:
                head, reason = output.blocked or (None, UNDER_WAY)
                said[reason, head == request.request_id] += len(output.end_times_s)
            found: dict[tuple[str, bool], int] = defaultdict(int)
            for phase in phases(history, request):
                if phase.kind == "waiting" and wait.start_s <= phase.start_s < (wait.end_s or 0):
                    found[phase.reason or "", phase.own] += phase.num_steps or 0
            assert {k: n for k, n in found.items() if n} == {k: n for k, n in said.items() if n}


def test_the_run_waits_as_long_as_its_requests(run: tuple[Journal, History]) -> None:
    """The sums over a run, computed without walking, are those of all the phases."""
    _, history = run
    sums: dict[str, float] = defaultdict(float)
    own_s = 0.0
    for request in history.requests.values():
        for phase in phases(history, request):
            if phase.kind == "waiting":
                sums[phase.reason or ""] += phase.seconds
                own_s += phase.seconds if phase.own else 0.0
    found = causes(history)
    assert {k: s for k, s in found.seconds.items() if s} == pytest.approx(dict(sums))
    assert found.own_turn_s == pytest.approx(own_s)


def test_tokens_and_preemptions_are_the_recorders(run: tuple[Journal, History]) -> None:
    """Two folds of the same outputs, one answer."""
    heard, history = run
    recorder = Recorder(BLOCKS, len({output.replica for output in heard.outputs}))
    for submit in heard.submits:
        recorder.arrived(submit.request_id, submit.arrival_s, submit.num_prompt_tokens)
    for output in heard.outputs:
        recorder.observe(output)
    columns = recorder.columns
    for row, name in enumerate(columns.request_id):
        request = history.requests[name]
        assert request.num_output_tokens == columns.num_output_tokens[row]
        if all(s.caught_up_s is not None for s in request.spans):
            # Of one preempted while it recomputes, the recorder counts the whole debt at once.
            assert sum(s.recomputed_tokens for s in request.spans) == columns.recomputed_tokens[row]
        assert sum(s.preempted is not None for s in request.spans) == columns.num_preemptions[row]
        assert (request.end_s, request.first_token_s) == (columns.finish_s[row], columns.first_token_s[row])


def test_preemption_happens_in_these_runs(tmp_path: Path) -> None:
    """The laws above are about something."""
    found = []
    for seed in SEEDS:
        record(tmp_path / str(seed), seed)
        found.append(findings(load(tmp_path / str(seed)), 3).preemptions)
    assert sum(p.num for p in found) > 20 and sum(p.recomputed_tokens for p in found) > 100


def test_who_lacked_blocks_needed_more_than_were_free() -> None:
    """Where no prefix is shared and the whole prompt must fit, that is exact."""
    history = golden("03_heavy_preempt_nocache")
    found = [
        phase
        for request in history.requests.values()
        for phase in phases(history, request)
        if phase.reason == "KV blocks"
    ]
    assert found
    for phase in found:
        assert phase.needed_blocks is not None and phase.free_blocks is not None
        assert phase.needed_blocks > phase.free_blocks


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("seed", SEEDS)
def test_decode_runs_on_or_off_the_pages_are_the_same(
    tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Byte for byte: the run's page, and requests' pages, as text and as JSON."""
    pages = []
    for decode_runs in (True, False):
        folder = tmp_path / str(decode_runs) / "run"
        record(folder, seed, decode_runs=decode_runs)
        for as_json in (False, True):
            explain(folder, as_json=as_json, top=5)
            for name in ("r3", "r20", "r41"):
                explain(folder, name, as_json=as_json, every=True)
        pages.append(capsys.readouterr().out)
    assert pages[0] == pages[1]


# --- logs of decisions ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_derived_reasons_are_the_planners(name: str) -> None:
    """What a log lets one conclude is what `plan` says when it takes the same decisions."""
    trace, log = read_golden(name)
    truth = []

    def watch(happening: Happening) -> None:
        if isinstance(happening, HasPlanned):
            batch = happening.batch
            preempted = tuple(zip(batch.preempted, batch.preempted_for, strict=True))
            truth.append((happening.blocked, preempted))

    outputs = {row["id"]: row["outputs"] for row in trace["requests"]}
    Driver(parse_trace(trace), RecordedOutputs(outputs), watch).run()
    steps = [r for r in log_records(trace, map(json.loads, log)) if isinstance(r, JournalStep)]
    assert len(steps) == len(truth)
    for step, (blocked, preempted) in zip(steps, truth, strict=True):
        assert step.blocked == blocked, step.step
        assert tuple(p[:2] for p in step.preempted) == preempted, step.step


def test_the_page_of_a_preempted_request_says_when_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    """r7 of the second golden: preempted in steps 22, 32 and 64, for r1, itself and r3."""
    history = golden(HEAVY)
    RequestPage(history, history.requests["r7"]).print(console_for())
    page = " ".join(capsys.readouterr().out.split())
    assert "22.000 preempted for r1, which needed a KV block to grow" in page
    assert "lost 159 computed tokens" in page
    assert "32.000 preempted because its own next token needed a block" in page
    assert "64.000 preempted for r3" in page
    assert "next in the queue: too few free KV blocks (needed up to 10, 9 free, 7 running)" in page
    assert "112 tokens found in the prefix cache; computed 48, 47 of them for the second" in page
    assert "312 tokens computed again" in page


def test_the_page_of_a_run_ranks_its_waits(capsys: pytest.CaptureFixture[str]) -> None:
    """The longest come first, as many as asked for, and shares add up to the whole."""
    history = golden(HEAVY)
    data = run_data(findings(history, 7))
    waits = [row["waiting"] for row in data["worst_waits"]]
    assert len(waits) == 7 and waits == sorted(waits, reverse=True)
    assert sum(row["share"] for row in data["causes"]) == pytest.approx(1)
    assert data["preemptions"]["num"] == 25 == sum(data["preemptions"]["victims"].values())
    print_run(console_for(), HEAVY, findings(history, 10))
    page = capsys.readouterr().out
    assert "25 preemptions" in page and "lacked KV blocks" in page
    assert max(map(len, page.splitlines())) <= 96


# --- mistakes ------------------------------------------------------------------------------------


def test_an_unknown_request_is_an_error_that_suggests_the_nearest() -> None:
    """One letter too many."""
    with pytest.raises(
        JournalError, match=r"none of the 40 recorded requests is called 'rr7'.*Did you mean r7"
    ):
        find_request(golden(HEAVY).requests, "rr7")


def test_a_mistake_is_one_message_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """On stderr, without a traceback."""
    monkeypatch.setattr("sys.argv", ["sundog", "explain", str(tmp_path)])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("sundog: ")
    assert captured.err.count("\n") == 1
