"""The journal on disk: complete, reproducible bytes, and damaged files are refused."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from sundog.actors.config import EngineConfig
from sundog.actors.messages import Capacity
from sundog.sim.explain.journal_reader import journal_header, journal_records
from sundog.sim.explain.load import load
from sundog.sim.files.lines import JsonLines
from sundog.sim.files.run_files import JOURNAL as NAME
from sundog.sim.record.journal import Journal
from sundog.sim.record.journal_file import JournalFile
from sundog.sim.record.journal_rows import Arrival, Header, JournalError, JournalStep
from sundog.sim.replay import replay
from tests.sim.test_replay import COST, random_config, random_trace

BLOCKS = 41
SEEDS = range(4)


def record(directory: Path, seed: int, **options: bool) -> Journal:
    """Replay a crowded trace; the journal lies in `directory`, what was said is returned."""
    config, heard = tight(random_config(seed), **options), Journal()
    journal = JournalFile(directory, Header.of(config, BLOCKS))
    replay(random_trace(seed), config, COST, Capacity(BLOCKS, 16), listeners=[journal, heard])
    return heard


def tight(config: EngineConfig, *, decode_runs: bool = True) -> EngineConfig:
    """The configuration over a pool so small that requests are preempted."""
    return EngineConfig(
        scheduler=replace(config.scheduler, num_gpu_blocks=BLOCKS),
        policy=config.policy,
        replicas=config.replicas,
        decode_runs=decode_runs,
    )


def read(directory: Path) -> tuple[Header, list[Arrival | JournalStep]]:
    lines = JsonLines(directory / NAME, JournalError.at)
    rows = iter(lines)
    return journal_header(next(rows), lines), list(journal_records(lines, rows))


@pytest.mark.parametrize("spare", [-1, 0])
def test_a_journal_of_more_requests_than_it_may_have_is_removed(tmp_path: Path, spare: int) -> None:
    """One of just as many is complete."""
    config, trace = tight(random_config(0)), list(random_trace(0))
    journal = JournalFile(tmp_path, Header.of(config, BLOCKS), most_requests=len(trace) + spare)
    replay(trace, config, COST, Capacity(BLOCKS, 16), listeners=[journal])
    assert (tmp_path / NAME).exists() == (spare == 0)
    if spare == 0:
        assert sum(isinstance(r, Arrival) for r in read(tmp_path)[1]) == len(trace)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_read_is_what_was_said(tmp_path: Path, seed: int) -> None:
    """Every Submit and StepOutput, exactly, in the order in which they were told."""
    heard = record(tmp_path, seed)
    header, records = read(tmp_path)
    assert (header.num_blocks, header.block_size) == (BLOCKS, 16)
    arrivals = [r for r in records if isinstance(r, Arrival)]
    steps = [r for r in records if isinstance(r, JournalStep)]
    assert [(a.request_id, a.time_s, a.num_prompt_tokens, a.priority) for a in arrivals] == [
        (s.request_id, s.arrival_s, s.num_prompt_tokens, s.priority) for s in heard.submits
    ]
    assert len(steps) == len(heard.outputs)
    for step, output in zip(steps, heard.outputs, strict=True):
        batch = output.batch
        assert (step.step, step.start_s, step.ends_s, step.replica) == (
            batch.step,
            output.start_s,
            output.end_times_s,
            output.replica,
        )
        assert step.chunks == batch.chunks
        assert [a.request_id for a in step.admitted] == [a.request_id for a in batch.admitted]
        assert [p.request_id for p in step.preempted] == list(batch.preempted)
        assert [p.for_request for p in step.preempted] == list(batch.preempted_for)
        assert [(e.request_id, e.reason) for e in step.ended] == [
            (f.request_id, f.reason) for f in output.finished
        ]
        assert (step.idle, step.num_decodes) == (batch.idle, batch.num_decodes)
        assert (step.blocked, step.num_free_blocks) == (output.blocked, output.num_free_blocks)


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    """No time of writing, no name of a file."""
    record(tmp_path / "a", 1)
    record(tmp_path / "b", 1)
    assert (tmp_path / "a" / NAME).read_bytes() == (tmp_path / "b" / NAME).read_bytes()


def test_a_decode_run_is_one_line_with_the_end_of_each_step(tmp_path: Path) -> None:
    """The steps are the same, in fewer lines."""
    steps = {}
    for decode_runs in (True, False):
        folder = tmp_path / str(decode_runs)
        record(folder, 2, decode_runs=decode_runs)
        steps[decode_runs] = [r for r in read(folder)[1] if isinstance(r, JournalStep)]
    ends = [sorted((s.replica, end_s) for s in found for end_s in s.ends_s) for found in steps.values()]
    assert ends[0] == ends[1]
    assert len(steps[True]) < len(steps[False])


def test_a_journal_that_breaks_off_is_read_up_to_there(tmp_path: Path) -> None:
    """A killed server's journal ends in the middle of a line, or of a gzip stream."""
    record(tmp_path, 1)
    whole = load(tmp_path)
    data = (tmp_path / NAME).read_bytes()
    (tmp_path / NAME).write_bytes(data[: len(data) * 2 // 3])
    part = load(tmp_path)
    assert part.cut_off and not whole.cut_off
    assert 0 < part.queues[0].num_steps < whole.queues[0].num_steps
    (tmp_path / NAME).write_bytes(gzip.decompress(data)[:-5])
    assert load(tmp_path).cut_off


HEAD = '{"journal":1,"block_size":16,"replicas":1}'
SUBMIT = '{"submit":"a","arrival":0.0,"prompt":3,"max_tokens":2}'
STEP = '{"step":1,"start":0.0,"ends":[1.0],"free":4,"admitted":[["a",3,0,0]]}'


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([HEAD, SUBMIT, "{"], "line 3: not JSON"),
        ([HEAD, "[1]"], "line 2: '[1]' is not a JSON object"),
        ([HEAD.replace("1", "7", 1)], "line 1: journal version 7"),
        ([HEAD.replace("16", '"x"')], "line 1: block_size is 'x'"),
        ([HEAD, "{}"], "line 2: the field 'start' is missing"),
        ([HEAD, SUBMIT.replace("3", "-3")], "line 2: -3 is negative"),
        ([HEAD, SUBMIT.replace("0.0", "NaN")], "line 2: not JSON: NaN"),
        ([HEAD, SUBMIT.replace('"a"', "null")], "line 2: None is not a string"),
        ([HEAD, SUBMIT, STEP.replace("[1.0]", "[-1.0]")], "line 3: time goes back"),
        ([HEAD, SUBMIT, STEP.replace(",3,0,0", ",3")], "line 3: ['a', 3] has not 4 parts"),
        ([HEAD, STEP], "line 2: the step admits 'a', which never arrived"),
        ([HEAD, SUBMIT, SUBMIT], "line 3: request 'a' arrived twice"),
        ([HEAD, SUBMIT, STEP, STEP], "line 4: step 1 admits 'a', which does not wait"),
        (["{}"], "line 1: not a journal of Sundog"),
        ([], "is empty"),
    ],
)
def test_a_malformed_line_is_an_error_that_names_it(tmp_path: Path, lines: list[str], reason: str) -> None:
    """File, line and reason."""
    path = tmp_path / "bad.jsonl"
    path.write_text("".join(line + "\n" for line in lines))
    with pytest.raises(JournalError) as caught:
        load(path)
    assert str(path) in str(caught.value) and reason in str(caught.value)


def test_damaged_gzip_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    """Bytes changed in the middle."""
    record(tmp_path, 1)
    data = bytearray((tmp_path / NAME).read_bytes())
    data[len(data) // 2] ^= 0xFF
    data[len(data) // 2 + 1] ^= 0xFF
    (tmp_path / NAME).write_bytes(data)
    with pytest.raises(JournalError, match=NAME):
        load(tmp_path)


def test_a_directory_without_a_journal_says_how_to_make_one(tmp_path: Path) -> None:
    """And a path that is not there is named."""
    with pytest.raises(JournalError, match="sundog replay … --out"):
        load(tmp_path)
    with pytest.raises(JournalError, match="does not exist"):
        load(tmp_path / "nowhere")


def test_a_journal_holds_no_prompt(tmp_path: Path) -> None:
    """Only counts, times, ids and reasons."""
    record(tmp_path, 1)
    text = gzip.decompress((tmp_path / NAME).read_bytes()).decode()
    keys = {key for line in text.splitlines()[1:] for key in json.loads(line)}
    assert keys <= {
        "submit",
        "arrival",
        "prompt",
        "max_tokens",
        "priority",
        "tenant",
        "step",
        "start",
        "ends",
        "free",
        "replica",
        "decodes",
        "admitted",
        "chunks",
        "idle",
        "preempted",
        "ended",
        "blocked",
        "planned_free",
        "ranks",
    }
