"""The folder of a run is replayed as the trace that it was made from, and nothing is lost."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from sundog.actors.config import ConfigError
from sundog.cli import cli
from sundog.sim.files.run_files import KEPT_TRACE
from sundog.sim.trace.read import read_trace
from sundog.sim.trace.record import TraceError, TraceRequest
from tests.live import EMULATED, live

SAMPLES = Path(__file__).parents[1] / "sim" / "trace" / "samples"
COLUMNS = ("request_id", "arrival_s", "first_token_s", "finish_s", "num_output_tokens", "prefix_hit_tokens")


def inside(*arguments: object) -> tuple[str, str]:
    """What a command says on stdout and on stderr, run in this process."""
    done = CliRunner().invoke(cli, [*map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return done.stdout, done.stderr


def rows(folder: Path) -> list[dict[str, object]]:
    return pq.read_table(folder / "requests.parquet", columns=list(COLUMNS)).to_pylist()


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sess.jsonl", ("--policy", "priority", "--slo", "ttft=1")),
        ("prio.jsonl", ("--policy", "priority", "--max-num-seqs", 1)),
        ("lss49s.jsonl", ()),
        ("weka.json", ("--block-size", 64)),
        ("e_agent.jsonl", ("--limit", 1)),
        ("own-table.csv", ("--columns", "arrival=when,prompt=prompt len,output=answer len,session=who")),
        ("sess.jsonl", ("--sample-sessions", 0.9, "--max-idle-s", 1, "--until", 60)),
    ],
)
def test_a_run_is_replayed_as_what_it_was_made_from(
    name: str, options: tuple[object, ...], tmp_path: Path
) -> None:
    """The same bytes of figures, and the same rows: contents, sessions, priorities, limits, order."""
    shutil.copy(SAMPLES / name, tmp_path / name)
    own = {"--columns", "--limit", "--sample-sessions", "--max-idle-s", "--until"}
    again = [word for flag, value in zip(options[::2], options[1::2], strict=True) if flag not in own
             for word in (flag, value)]  # fmt: skip
    first, _ = inside("replay", tmp_path / name, *options, "--out", tmp_path / "a", "--json")
    second, said = inside("replay", tmp_path / "a", *again, "--out", tmp_path / "b", "--json")
    third, _ = inside("replay", tmp_path / "b", *again, "--json")
    assert first == second == third
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    assert "its trace is missing" not in said


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_the_figures_of_a_run_with_shared_prompts_are_those_of_its_trace(tmp_path: Path) -> None:
    """3,584 tokens of hits, as the trace has, in `sweep` too."""
    shutil.copy(SAMPLES / "sess.jsonl", tmp_path)
    inside("replay", tmp_path / "sess.jsonl", "--out", tmp_path / "a", "--policy", "priority")
    for source in ("sess.jsonl", "a"):
        found, _ = inside("replay", tmp_path / source, "--policy", "priority", "--json")
        assert json.loads(found)["prefix_hit_tokens"] == 3584
    vary = ("--vary", "max_num_seqs=1,8", "--metric", "prefix_hit_rate", "--json")
    swept = [json.loads(inside("sweep", tmp_path / source, *vary)[0]) for source in ("sess.jsonl", "a")]
    assert swept[0]["cells"] == swept[1]["cells"] != []


def test_a_trace_that_has_changed_is_refused_and_one_that_has_gone_is_said(tmp_path: Path) -> None:
    """Never silently another load."""
    trace = tmp_path / "lss49s.jsonl"
    shutil.copy(SAMPLES / trace.name, trace)
    inside("replay", trace, "--out", tmp_path / "a")
    text = trace.read_text()
    trace.write_text(text + text.splitlines()[-1] + "\n")
    with pytest.raises(TraceError, match="has changed since"):
        inside("replay", tmp_path / "a")
    trace.unlink()
    _, said = inside("replay", tmp_path / "a", "--json")
    assert "its trace is missing" in said and "prompts" in said
    trace.write_text(text)
    moved = Path(shutil.move(tmp_path / "a", tmp_path / "b"))
    assert "its trace is missing" not in inside("replay", moved, "--json")[1]


def test_a_run_does_not_take_the_place_of_the_run_that_is_replayed(tmp_path: Path) -> None:
    """Nobody could say any more what either was made from."""
    shutil.copy(SAMPLES / "lss49s.jsonl", tmp_path)
    inside("replay", tmp_path / "lss49s.jsonl", "--out", tmp_path / "a")
    with pytest.raises(ConfigError, match="give another folder"):
        inside("replay", tmp_path / "a", "--out", tmp_path / "a")


def test_other_arrivals_are_those_of_the_run(tmp_path: Path) -> None:
    """What a request rate moved stays where it was."""
    shutil.copy(SAMPLES / "lss49s.jsonl", tmp_path)
    inside("replay", tmp_path / "lss49s.jsonl", "--request-rate", 5, "--out", tmp_path / "a")
    inside("replay", tmp_path / "a", "--out", tmp_path / "b")
    assert rows(tmp_path / "a") == rows(tmp_path / "b")


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_the_folder_of_a_bench_is_replayed_as_its_trace(tmp_path: Path) -> None:
    """It keeps the requests themselves, also of a workload; lengths are those that the server counted."""
    shutil.copy(SAMPLES / "lss49s.jsonl", tmp_path)
    with live(*EMULATED) as server:
        inside("bench", server.url, tmp_path / "lss49s.jsonl", "--out", tmp_path / "a", "--scale", 20)
    kept = list(read_trace(str(tmp_path / "a" / KEPT_TRACE)))
    trace = list(read_trace(str(SAMPLES / "lss49s.jsonl")))
    assert [row.hash_ids for row in kept] == [row.hash_ids for row in trace]
    asked: list[TraceRequest] = list(read_trace(str(tmp_path / "a")))
    assert asked == [row._replace(arrival_s=row.arrival_s / 20) for row in trace]
    found, said = inside("replay", tmp_path / "a", "--json")
    assert json.loads(found)["prefix_hit_tokens"] == 11_952 and "is not there" not in said


@pytest.mark.parametrize(("scale", "hits"), [(0.5, 19_968), (1, 39_936), (2, 79_872)])
def test_scaled_prompts_keep_what_they_share(scale: float, hits: int, tmp_path: Path) -> None:
    """39 blocks of 512 tokens in two of three prompts, so much longer or shorter."""
    shutil.copy(SAMPLES / "lss49.jsonl", tmp_path)
    spec = tmp_path / "sc.toml"
    spec.write_text(f'[scaled]\ntrace = "lss49.jsonl"\nprompt_scale = {scale}\noutput_scale = 2\n')
    inside("workload", spec, "-o", tmp_path / "sc.jsonl")
    found, _ = inside("replay", tmp_path / "sc.jsonl", "--block-size", 256, "--json")
    shared = json.loads(found)["prefix_hit_tokens"]
    assert hits - 2 * 256 < shared <= hits + 2 * 256 if scale != 0.5 else shared == hits


@pytest.mark.parametrize("scale", [0.3, 0.73, 0.999, 1.37, 3])
def test_no_scale_makes_prompts_alike_that_were_not(scale: float) -> None:
    """Two prompts share as many tokens as before, scaled, to within a block of each; never more."""
    from sundog.sim.workload.contents import scaled_prompts

    first = TraceRequest("a", 0.0, 1000, 1, tuple(range(7)), 128)
    second = TraceRequest("b", 0.0, 1000, 1, (0, 1, 2, 10, 11, 12, 13), 128)
    one, other = (row.block_hashes(16) for row in scaled_prompts([first, second], scale))
    assert one is not None and other is not None
    shared = next(i for i, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1])
    assert 3 * 128 * scale - 16 < shared * 16 <= 3 * 128 * scale
    assert not {*one[shared:]} & {*other[shared:]}
    assert len(one) == len(set(one)) == round(1000 * scale) // 16


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_windows_and_samples_go_with_every_command_that_reads_a_trace(tmp_path: Path) -> None:
    """The same part in each; a part of nothing, or of a workload, is refused."""
    trace = SAMPLES / "lss49s.jsonl"
    (tmp_path / "w.toml").write_text('[scaled]\ntrace = "x.jsonl"\n')
    for command in (("trace", trace), ("replay", trace, "--out", tmp_path / "a")):
        inside(*command, "--from", 1, "--until", 5)
    count = len(list(read_trace(str(tmp_path / "a"))))
    assert count == 2  # those at 2 and 4 s
    vary = ("--vary", "max_num_seqs=1,8", "--metric", "ttft_s.mean", "--json")
    part, run = (
        inside("sweep", trace, "--from", 1, "--until", 5, *vary),
        inside("sweep", tmp_path / "a", *vary),
    )
    assert json.loads(part[0])["cells"] == json.loads(run[0])["cells"] != []
    for wrong, words in (
        (("--from", 5, "--until", 5), "no request can be between them"),
        (("--from", 3600), "nothing is left of the trace's 4 requests.* from 3600 s"),
        (("--sample-sessions", 1e-6), "nothing is left .* share of sessions 1e-06"),
        (("--sample-sessions", 0), "above 0"),
        (("--sample-sessions", 1.5), "to 1"),
        (("--max-idle-s", 0), "above 0"),
        (("--columns", "arrival=a"), "prompt has no column"),
        (("--columns", "arrival=a:h,prompt=p,output=o"), "not in h"),
    ):
        with pytest.raises(ConfigError, match=words):
            inside("replay", trace, *wrong)
    with pytest.raises(ConfigError, match="--from is for a trace"):
        inside("sweep", tmp_path / "w.toml", "--from", 1, *vary)
