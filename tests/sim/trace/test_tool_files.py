"""Files of other tools, in their real format: each gives the requests that were sent."""

import json
from pathlib import Path
from typing import Any

import pytest

from sundog.actors.core.config import ConfigError
from sundog.sim.trace.read import read_trace
from sundog.sim.trace.record import TraceError, TraceRequest

SAMPLES = Path(__file__).parent / "samples"
COLUMNS = "arrival=when,prompt=prompt len,output=answer len,session=who"

Short = tuple[float, int, int]


def short(rows: list[TraceRequest]) -> list[Short]:
    return [(round(row.arrival_s, 9), row.num_prompt_tokens, row.num_output_tokens) for row in rows]


@pytest.mark.parametrize(
    ("name", "format", "rows"),
    [
        ("splitwise.csv", "splitwise", [(0.0, 512, 64), (0.75, 1300, 12), (2.5, 90, 200)]),
        (
            "llmservingsim.jsonl",
            "llmservingsim",
            [(0.0, 1472, 133), (0.25, 40, 8), (0.3, 20, 4), (1.25, 1700, 20), (1.75, 1800, 5)],
        ),
        ("llmservingsim-results.csv", "llmservingsim-results", [(0.0, 2358, 53), (1.0, 399, 52)]),
        ("aiperf.jsonl", "aiperf", [(0.0, 70, 30), (0.25, 550, 9), (2.25, 600, 11)]),
        (
            "weka.json",
            "weka",
            [(0.0, 200, 30), (5.0, 330, 40), (7.5, 130, 10), (9.0, 150, 12), (12.0, 400, 8)],
        ),
        ("guidellm.json", "guidellm", [(0.0, 256, 128), (1.25, 300, 20)]),
        ("otlp.json", "otlp", [(0.0, 900, 70), (2.25, 1200, 80)]),
        ("mooncake-without-times.jsonl", "mooncake", [(0.0, 1500, 20), (0.0, 900, 10)]),
        ("vb_failed.json", "vllm-bench", [(0.0, 512, 64), (1.1, 700, 128), (1.9, 20, 32)]),
    ],
)
def test_each_file_gives_the_requests_that_were_asked(name: str, format: str, rows: list[Short]) -> None:
    """From the first of them on, in order of arrival; the same ones each time it is read."""
    trace = read_trace(str(SAMPLES / name))
    assert trace.format == format
    assert short(list(trace)) == rows
    assert list(trace) == list(trace)


def test_tokens_that_begin_alike_have_names_in_common() -> None:
    """LLMServingSim's files hold the tokens: 16 of them are a block."""
    rows = {row.num_prompt_tokens: row for row in read_trace(str(SAMPLES / "llmservingsim.jsonl"))}
    first, second = rows[40], rows[20]
    assert first.hash_block_tokens == second.hash_block_tokens == 16
    assert first.hash_ids is not None and second.hash_ids == first.hash_ids[:1] and len(first.hash_ids) == 2


def test_sub_requests_come_after_one_another_and_their_tools() -> None:
    """As LLMServingSim plays them."""
    turns = [row for row in read_trace(str(SAMPLES / "llmservingsim.jsonl")) if row.session == "task-0"]
    assert [(row.after, row.pause_s) for row in turns] == [
        ((), 0.0),
        (("task-0.0",), 1.25),
        (("task-0.1",), 0.5),
    ]


def test_agents_wait_for_their_subagents() -> None:
    """Pauses are think times, or what is left between an end and the next beginning."""
    rows = list(read_trace(str(SAMPLES / "weka.json")))
    assert {row.session for row in rows} == {"trace_0001"}
    assert [(row.after, round(row.pause_s, 9)) for row in rows] == [
        ((), 0.0),
        (("trace_0001.0",), 3.0),  # asked at 5.0, the one before took from 0 to 2
        (("trace_0001.1",), 1.0),  # 7.0 + 0.5, after an end at 6.5
        (("trace_0001.2",), 0.25),  # its think time
        (("trace_0001.1", "trace_0001.3"), 2.0),  # asked at 12, the subagent ended at 7 + 2 + 1
    ]
    assert rows[1].hash_ids is not None and rows[0].hash_ids is not None
    assert rows[1].hash_ids[:3] == rows[0].hash_ids and rows[0].hash_block_tokens == 64
    assert rows[2].hash_ids is not None and not {*rows[2].hash_ids} & {*rows[1].hash_ids}


def test_ids_of_one_session_are_not_those_of_another(tmp_path: Path) -> None:
    """They count within each; an object a line is a session."""
    asked = '{"t": 0, "type": "n", "in": 32, "out": 1, "hash_ids": [1, 2]}'
    session = f'{{"id": "%s", "block_size": 16, "requests": [{asked}]}}'
    path = tmp_path / "weka.jsonl"
    path.write_text(f"{session % 'a'}\n{session % 'b'}\n")
    first, second = read_trace(str(path))
    assert first.hash_ids and second.hash_ids and not {*first.hash_ids} & {*second.hash_ids}


def test_spans_of_a_conversation_are_a_session() -> None:
    """And the span above them, which counts the same tokens again, is left out."""
    assert [row.session for row in read_trace(str(SAMPLES / "otlp.json"))] == ["talk-7", "talk-7"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("vb_failed.json", "1 of 4 requests failed"),
        ("guidellm.json", "1 of 3 requests failed"),
        ("aiperf.jsonl", "1 of 4 requests failed"),
        ("otlp.json", "1 of 3 requests failed"),
        ("sg.json", "--request-rate 0.5"),
        ("mooncake-without-times.jsonl", "no timestamps"),
    ],
)
def test_what_is_left_out_or_not_known_is_said(name: str, words: str) -> None:
    """In a line that names the file."""
    (remark,) = read_trace(str(SAMPLES / name)).remarks
    assert words in remark and name in remark


def test_a_failed_request_of_sglangs_bench_is_left_out(tmp_path: Path) -> None:
    """And said, beside what its file lacks."""
    result = json.loads((SAMPLES / "sg.json").read_text())
    result["output_lens"][1], result["errors"][1] = 0, "Timeout"
    (path := tmp_path / "sg.json").write_text(json.dumps(result))
    trace = read_trace(str(path))
    assert short(list(trace)) == [
        (0.0, 512, 64),
        (0.0, 700, 128),
        (0.0, 20, 32),
        (0.0, 900, 40),
        (0.0, 33, 50),
    ]
    said = " ".join(trace.remarks)
    assert "1 of 6 requests failed" in said and "--request-rate 0.5" in said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("vb_append.json", "2 results in one file"),
        ("any.json", "not a known trace: '{' with the keys a"),
        ("own-table.csv", "--columns"),
    ],
)
def test_what_is_no_trace_is_said_to_be_none(name: str, words: str) -> None:
    """Not taken for the format that comes next."""
    with pytest.raises(TraceError, match=words.replace("{", r"\{")):
        list(read_trace(str(SAMPLES / name)))


EPOCHS = ("e_bench.csv", "e_burst.csv", "e_serv.csv", "e_agent.jsonl", "e_bail.jsonl", "o_epoch.jsonl")


@pytest.mark.parametrize("name", EPOCHS)
def test_dates_count_from_the_first_row(name: str) -> None:
    """In every format; exactly, to the printed digits."""
    assert [row.arrival_s for row in read_trace(str(SAMPLES / name))] == [0.0, 1.0]


def test_a_trace_may_be_as_long_as_burstgpts_own() -> None:
    """110 days; what is later than 194 is taken to be damaged, and a date in ms where seconds are is none."""
    first, second = read_trace(str(SAMPLES / "burst_late.csv"))
    assert second.arrival_s - first.arrival_s == 5_269_967


@pytest.mark.parametrize(
    "stamps", ["0\n20000000", "1787267980000\n1787267981000", "nan\n1", "1787267980\n1787267979"]
)
def test_instants_that_make_no_sense_are_refused(tmp_path: Path, stamps: str) -> None:
    """By line and column."""
    first, second = stamps.split()
    path = tmp_path / "t.csv"
    path.write_text(f"arrived_at,num_prefill_tokens,num_decode_tokens\n{first},5,5\n{second},5,5\n")
    with pytest.raises(TraceError, match="arrived_at"):
        list(read_trace(str(path)))


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_the_columns_of_any_table_can_be_named(tmp_path: Path, ending: str) -> None:
    """Dates too, in quotes or not; in order of arrival."""
    path = SAMPLES / "own-table.csv"
    if ending != "csv":
        import pyarrow.csv as pc
        import pyarrow.parquet as pq

        table, path = pc.read_csv(path), tmp_path / f"t.{ending}"
        if ending == "parquet":
            pq.write_table(table, path)
        else:
            path.write_text("".join(json.dumps(row, default=str) + "\n" for row in table.to_pylist()))
    rows = list(read_trace(str(path), columns=COLUMNS))
    assert short(rows) == [(0.0, 200, 6), (2.0, 100, 5), (3.5, 300, 7)]
    assert [row.session for row in rows] == ["a", "b", "a"]


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_a_table_may_have_other_delimiters_and_a_mark(tmp_path: Path, delimiter: str) -> None:
    """As spreadsheets and `cut` write them: the one by which the header has all columns."""
    path = tmp_path / "t.csv"
    text = f'when{delimiter}p{delimiter}note{delimiter}o\n1.5{delimiter}"7"{delimiter}"a, b"{delimiter}3\n'
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    (row,) = read_trace(str(path), columns="arrival=when,prompt=p,output=o")
    assert (row.num_prompt_tokens, row.num_output_tokens) == (7, 3)


def test_an_arrival_may_be_in_another_unit(tmp_path: Path) -> None:
    """Exactly, however large it is."""
    path = tmp_path / "t.jsonl"
    path.write_text(
        '{"t": 1787267980082000001, "p": 5, "o": 1}\n{"t": 1787267980083000001, "p": 6, "o": 1}\n'
    )
    assert short(list(read_trace(str(path), columns="arrival=t:ns,prompt=p,output=o"))) == [
        (0.0, 5, 1),
        (0.001, 6, 1),
    ]


@pytest.mark.parametrize(
    ("columns", "text", "words"),
    [
        ("prompt=p,output=o", "p,o\n5,x\n", "line 2, column o: 'x' is not a whole number"),
        ("prompt=p,output=o", "p,o\n5,\n", "line 2, column o: missing"),
        ("prompt=p,output=o", "p,o\n5\n", "1 columns instead of 2"),
        ("prompt=p,output=o", "p,o\n0,1\n", "0 prompt tokens"),
        ("prompt=p,output=q", "p,o\n5,1\n", "no such column for output; there are p, o"),
        ("arrival=a,prompt=p,output=o", "a,p,o\nsoon,5,1\n", "'soon' is neither a number nor a date"),
        ("prompt=p,output=o", "p,o\n", "there are no rows"),
        ("prompt=p,output=q", "p;o\n5;1\n", "no such column for prompt; there are p;o"),
        ("prompt=p,output=o", '[{"p": 1, "o": 2}]', "--columns reads JSON by lines"),
        ("prompt=p,output=o", '{\n"p": 1, "o": 2}', "--columns reads JSON by lines"),
    ],
)
def test_a_wrong_table_is_refused_by_line_and_column(
    tmp_path: Path, columns: str, text: str, words: str
) -> None:
    """Nothing is repaired."""
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=words):
        list(read_trace(str(path), columns=columns))


NUMBERS = {
    "llmservingsim.jsonl": '"input_toks": 1472',
    "aiperf.jsonl": '"value": 550',
    "weka.json": '"in": 330',
    "guidellm.json": '"prompt_tokens": 300',
    "otlp.json": '"intValue": "900"',
}
"""A count of a prompt's tokens in each sample."""


@pytest.mark.parametrize("name", NUMBERS)
def test_a_damaged_file_is_refused_and_not_repaired(tmp_path: Path, name: str) -> None:
    """A count that is negative, none, broken or a text; a file that is cut off."""
    text, number, path = (SAMPLES / name).read_text(), NUMBERS[name], tmp_path / name
    key = number.partition(":")[0]
    assert number in text
    wrong = [text.replace(number, f"{key}: {bad}") for bad in ("-5", "0", "1.5", '"many"')]
    for damaged in (*wrong, text[:-20]):
        path.write_text(damaged)
        with pytest.raises(TraceError):
            list(read_trace(str(path)))


def _part(**given: Any) -> list[TraceRequest]:
    from sundog.sim.trace.window import TracePart

    return TracePart(**given).of(ROWS)


ROWS = [
    TraceRequest("a0", 10.0, 5, 1, session="a"),
    TraceRequest("b", 12.0, 5, 1),
    TraceRequest("a1", 20.0, 5, 1, session="a", after=("a0",), pause_s=9.0),
    TraceRequest("c", 40.0, 5, 1),
    TraceRequest("d", 41.0, 5, 1),
]


def test_a_window_has_whole_sessions_and_begins_at_zero() -> None:
    """A session belongs where its first request is; seconds count from the trace's first arrival."""
    assert [(row.request_id, row.arrival_s) for row in _part(from_s=0.0, until_s=5.0)] == [
        ("a0", 0.0),
        ("b", 2.0),
        ("a1", 10.0),
    ]
    assert [(row.request_id, row.arrival_s) for row in _part(from_s=5.0)] == [("c", 25.0), ("d", 26.0)]
    assert _part() == ROWS
    with pytest.raises(ConfigError, match=r"nothing is left of the trace's 5 requests.* from 100 s"):
        _part(from_s=100.0)


def test_idle_time_is_cut_between_arrivals_and_in_sessions() -> None:
    """Gaps of 8 and 20 s become 3 s; shorter ones stay."""
    rows = _part(max_idle_s=3.0)
    assert [row.arrival_s for row in rows] == [10.0, 12.0, 15.0, 18.0, 19.0]
    assert rows[2].pause_s == 3.0


def test_a_sample_is_of_whole_sessions_the_same_each_time_and_nested() -> None:
    """A larger share has all of a smaller one, and about as many as it says."""
    from sundog.sim.trace.window import TracePart

    rows = [
        TraceRequest(f"{s}.{t}", float(s), 5, 1, session=str(s), after=(f"{s}.{t - 1}",) if t else ())
        for s in range(500)
        for t in range(3)
    ]
    small, large = ({row.request_id for row in TracePart(share=share).of(rows)} for share in (0.1, 0.4))
    assert small < large and len(small) % 3 == len(large) % 3 == 0
    assert 90 < len(small) < 240 and 480 < len(large) < 720
