"""Traces: every format is read to the same record, and every malformed row is refused by name."""

import gzip
import json
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sundog.actors.core.config import ConfigError
from sundog.sim.files.lines import BLOCK_BYTES, MOST_LINE_BYTES, decode, read_lines
from sundog.sim.trace.jsonl_rows import UNITS, write_trace
from sundog.sim.trace.read import read_trace
from sundog.sim.trace.record import TraceError, TraceRequest
from sundog.sim.workload.read import read_spec

HEADER = json.dumps({"format": "sundog-trace", "version": 1, "units": UNITS, "provenance": "test"})
BLOCK_HEADER = HEADER[:-1] + ', "hash_block_tokens": 16}'
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
BENCH = "arrived_at,num_prefill_tokens,num_decode_tokens"
SHARED = Path(__file__).parents[4] / "shared" / "traces"


def written(tmp_path: Path, text: str | bytes, name: str = "trace") -> str:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


BURST = "Model,Request tokens,Response tokens,Total tokens,Log Type"
BURSTGPT = f"Timestamp,{BURST}"


def simple(path: str) -> list[tuple[float, int, int]]:
    return [(r.arrival_s, r.num_prompt_tokens, r.num_output_tokens) for r in read_trace(path)]


@pytest.mark.parametrize(
    ("text", "name", "rows"),
    [
        (
            f"{AZURE}\r\n2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:16:00.9951690,396,109",
            "azure",
            [(0.0, 374, 44), (14.314579, 396, 109)],
        ),
        (
            f"{AZURE}\n2024-05-10 23:59:59.009930+00:00,2162,5\n2024-05-11 00:00:00+00:00,7,8\n",
            "azure",
            [(0.0, 2162, 5), (0.99007, 7, 8)],
        ),
        (f"{BENCH}\n0.5,1014,185\n1e1,3,4\n", "bench", [(0.5, 1014, 185), (10.0, 3, 4)]),
        (
            "arrived_at,input_tokens,output_tokens,reason_ratio\n1.0e-08,823,1840,0.938\n",
            "servegen",
            [(1e-08, 823, 1840)],
        ),
        ("arrived_at,input_tokens,output_tokens\n1,31,5\n", "servegen", [(1.0, 31, 5)]),
        (
            '{"timestamp": 27482, "input_length": 600, "output_length": 5, "hash_ids": [4, 7]}\n',
            "mooncake",
            [(27.482, 600, 5)],
        ),
        (
            f"Timestamp,{BURST}\n5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,7,9,16,API log\n",
            "burstgpt",
            [(5.0, 472, 18), (45.0, 7, 9)],
        ),
        (
            f"Timestamp,Session ID,Elapsed time,{BURST}\n1.5,42,3.1,GPT-4,7,9,16,API log\n",
            "burstgpt",
            [(1.5, 7, 9)],
        ),
        (
            '{"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 40,'
            ' "output_length": 27, "type": "text", "turn": 1, "hash_ids": [1, 2]}\n'
            '{"chat_id": 160, "parent_chat_id": 159, "timestamp": 62, "input_length": 20,'
            ' "output_length": 2, "type": "text", "turn": 2, "hash_ids": [1]}\n',
            "bailian",
            [(61.114, 40, 27), (62.0, 20, 2)],
        ),
        (HEADER + '\n{"arrival_s": 0.5, "prompt_tokens": 3, "output_tokens": 4}\n', "sundog", [(0.5, 3, 4)]),
    ],
)
def test_every_format_is_recognised_and_read(
    tmp_path: Path, text: str, name: str, rows: list[tuple[float, int, int]]
) -> None:
    """Plain and gzipped, whatever the file is called."""
    for data in (text.encode(), gzip.compress(text.encode()), b"\xef\xbb\xbf" + text.encode()):
        path = written(tmp_path, data, "trace.bin")
        assert read_trace(path).format == name
        assert simple(path) == rows
        assert [r.request_id for r in read_trace(path)] == [f"r{i:07d}" for i in range(len(rows))]


def good(key: str = "", value: object = None, **more: object) -> str:
    row: dict[str, object] = {"arrival_s": 1.0, "prompt_tokens": 32, "output_tokens": 4, **more}
    if key:
        row[key] = value
    return json.dumps(row)


BAD_ROWS = [
    (BENCH, "1.0,5", None, "2 columns instead of 3"),
    (BURSTGPT, "9,GPT-4,5,0,5,API log", "Response tokens", "0 output tokens.*remove the row"),
    (BURSTGPT, "9,GPT-4,x,1,5,API log", "Request tokens", "'x' is not a whole number"),
    (BURSTGPT, "x,GPT-4,5,1,5,API log", "Timestamp", "'x' is not a number"),
    (BENCH, "1.0,5,6,7", None, "4 columns instead of 3"),
    (BENCH, "nan,5,6", "arrived_at", "NaN"),
    (BENCH, "inf,5,6", "arrived_at", "later than"),
    (BENCH, "1e9,5,6", "arrived_at", "later than"),
    (BENCH, "-1,5,6", "arrived_at", "before the row above|negative"),
    (BENCH, "soon,5,6", "arrived_at", "'soon' is not a number"),
    (BENCH, "1_0,5,6", "arrived_at", "not a number"),
    (BENCH, "0.25,5,6", "arrived_at", r"before the row above \(0.5 s\); sort"),
    (BENCH, "1.0,0,6", "num_prefill_tokens", "0 prompt tokens"),
    (BENCH, "1.0,5,0", "num_decode_tokens", "0 output tokens.*remove the row"),
    (BENCH, "1.0,-5,6", "num_prefill_tokens", "-5 prompt tokens"),
    (BENCH, "1.0,5.5,6", "num_prefill_tokens", "'5.5' is not a whole number"),
    (BENCH, "1.0,5,", "num_decode_tokens", "'' is not a whole number"),
    (BENCH, "1.0,5,1" + "0" * 9000, "num_decode_tokens", "more than 100,000,000"),
    (BENCH, "1.0,5,1000000000", "num_decode_tokens", "more than 100,000,000"),
    (BENCH, "1.0,٥,6", "num_prefill_tokens", "not a whole number"),
    (BENCH, "", None, "blank"),
    (AZURE, "2023-11-16 18:15,5,6", "TIMESTAMP", "not a timestamp"),
    (AZURE, "2023-13-16 18:15:00.0,5,6", "TIMESTAMP", "not a timestamp"),
    (AZURE, "2023-11-16 24:15:00.0,5,6", "TIMESTAMP", "not a timestamp"),
    (AZURE, "2023-11-16 18:15:61.0,5,6", "TIMESTAMP", "not a timestamp"),
    (AZURE, "2023-11-16 18:15:00.0+02:00,5,6", "TIMESTAMP", "not a timestamp"),
    (AZURE, "2022-11-16 18:15:00.0,5,6", "TIMESTAMP", "negative|before the row above"),
    (HEADER, good("arrival_s", "1"), "arrival_s", "'1' is not a number"),
    (HEADER, good("arrival_s", True), "arrival_s", "not a number"),
    (HEADER, good("arrival_s", -1), "arrival_s", "negative"),
    (HEADER, good("arrival_s", 10**400), "arrival_s", "later than"),
    (HEADER, good("arrival_s", float("nan")), None, "NaN is not a JSON number"),
    (HEADER, good("prompt_tokens", 0), "prompt_tokens", "0 prompt tokens"),
    (HEADER, good("prompt_tokens", 1.5), "prompt_tokens", "1.5 is not a whole number"),
    (HEADER, '{"arrival_s": 1.0, "prompt_tokens": 5}', "output_tokens", "missing"),
    (HEADER, good("output_token", 5), "output_token", "Did you mean output_tokens"),
    (HEADER, good("priority", "high"), "priority", "not a whole number"),
    (HEADER, good("tenant", 5), "tenant", "not a text"),
    (HEADER, good("tenant", "\ud800"), "tenant", "half a surrogate pair"),
    (HEADER, good("hash_ids", [1, 2]), "hash_ids", "does not give hash_block_tokens"),
    (BLOCK_HEADER, good("hash_ids", [1]), "hash_ids", "1 ids for 32 prompt tokens"),
    (BLOCK_HEADER, good("hash_ids", [1, -2]), "hash_ids", "at least 0"),
    (BLOCK_HEADER, good("hash_ids", "ab"), "hash_ids", "must be a list"),
    (HEADER, "[]", None, "not a JSON object"),
    (HEADER, '{"arrival_s": 1', None, "not JSON"),
    (HEADER, "[" * 100_000, None, "not JSON"),
    (HEADER, "", None, "blank"),
]


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(("header", "row", "column", "reason"), BAD_ROWS)
def test_a_malformed_row_is_refused_with_file_line_column_and_reason(
    tmp_path: Path, header: str, row: str, column: str | None, reason: str
) -> None:
    """Also when thousands of good rows stand before it, and after it."""
    first = {AZURE: "2023-11-16 18:15:00.0,1,1", BENCH: "0.5,1,1", BURSTGPT: "0.5,GPT-4,1,1,2,API log"}.get(
        header, '{"arrival_s": 0.5, "prompt_tokens": 1, "output_tokens": 1}'
    )
    for num_good in (1, 5000):
        path = written(tmp_path, "\n".join([header, *[first] * num_good, row, first]) + "\n")
        with pytest.raises(TraceError, match=reason) as caught:
            list(read_trace(path))
        assert (caught.value.line, caught.value.column) == (num_good + 2, column)
        assert str(caught.value).startswith(f"{path}, line {num_good + 2}")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (gzip.compress(b"", mtime=0), "empty"),
        (b"a,b,c\n1,2,3\n", "not a known header"),
        (b"{}\n", "not a known trace"),
        ("TIMESTAMP,ContextTokens\n".encode("utf-16"), "UTF-16"),
        (b"\x00\x01\xff", "not text"),
        (BENCH.encode() + b"\n", "no rows"),
        (HEADER.encode() + b"\n", "no rows"),
        (HEADER.replace("1,", "2,", 1).encode() + b"\n", "version 2"),
        (HEADER.replace('"seconds"', '"ms"').encode() + b"\n", "arrival_s is in 'ms'"),
        (HEADER.replace("provenance", "provenence").encode() + b"\n", "unknown header key"),
        (gzip.compress(BENCH.encode() + b"\n" + b"0.5,1,1\n" * 999, mtime=0)[:-40], "too early"),
        (b"\x1f\x8bnot gzip at all", "gzip"),
        (HEADER.encode() + b'\n{"id": "\xff"}\n', "not UTF-8"),
    ],
)
def test_a_damaged_file_is_one_clean_error(tmp_path: Path, data: bytes, reason: str) -> None:
    """Empty, cut, wrongly encoded or foreign: a TraceError, which is a ConfigError."""
    path = written(tmp_path, data)
    with pytest.raises(TraceError, match=reason) as caught:
        list(read_trace(path))
    assert isinstance(caught.value, ConfigError)


def test_a_missing_file_or_a_folder_is_one_clean_error(tmp_path: Path) -> None:
    """The system's reason is passed on."""
    with pytest.raises(TraceError, match="No such file"):
        read_trace(str(tmp_path / "nothing"))
    with pytest.raises(TraceError, match=r"no requests.parquet: is it a run's\?"):
        list(read_trace(str(tmp_path)))


REQUESTS = st.lists(
    st.tuples(st.floats(0, 1e6), st.integers(1, 10**6), st.integers(1, 10**6)), min_size=1
).map(lambda rows: [TraceRequest(f"r{i:07d}", *row) for i, row in enumerate(sorted(rows))])


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(requests=REQUESTS)
def test_what_is_written_is_read_back_exactly(tmp_path: Path, requests: list[TraceRequest]) -> None:
    """Floats to the last bit, gzipped or not, and the same bytes every time."""
    for name in ("t.jsonl", "t.jsonl.gz"):
        path = str(tmp_path / name)
        assert write_trace(path, requests, provenance="test", seed=1) == len(requests)
        data = Path(path).read_bytes()
        assert list(read_trace(path)) == requests
        write_trace(path, requests, provenance="test", seed=1)
        assert Path(path).read_bytes() == data


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_mangled_trace_is_read_or_cleanly_refused(tmp_path: Path, data: st.DataObject) -> None:
    """Bytes cut, swapped or overwritten anywhere raise nothing but TraceError."""
    text = data.draw(
        st.sampled_from(
            [
                f"{AZURE}\r\n2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:16:00.9,396,109",
                f"{BENCH}\n0.5,1014,185\n1e1,3,4\n",
                '{"timestamp": 2, "input_length": 60, "output_length": 5, "hash_ids": [46]}\n',
                BLOCK_HEADER + "\n" + good("hash_ids", [1, 2], id="x", tenant="t") + "\n",
            ]
        )
    )
    raw = bytearray(text.encode())
    if data.draw(st.booleans()):
        raw = bytearray(gzip.compress(bytes(raw), mtime=0))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place : place + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
        raw = raw or bytearray(b"x")
    path = written(tmp_path, bytes(raw))
    try:
        for request in read_trace(path):
            assert request.num_prompt_tokens > 0 and request.num_output_tokens > 0
            assert request.arrival_s >= 0
    except TraceError as error:
        assert error.reason and error.path == path


def test_hash_ids_become_block_hashes_of_any_fitting_size() -> None:
    """Equal ids give equal blocks, full ones only."""
    one = TraceRequest("a", 0.0, 1000, 1, (7, 8), 512)
    two = TraceRequest("b", 0.0, 700, 1, (7, 9), 512)
    blocks, others = one.block_hashes(16), two.block_hashes(16)
    assert blocks is not None and others is not None
    assert (len(blocks), len(others)) == (1000 // 16, 700 // 16)
    assert blocks[:32] == others[:32] and not set(blocks[32:]) & set(others[32:])
    assert len(set(blocks)) == len(blocks)
    assert one.block_hashes(512) == (7,)
    assert TraceRequest("c", 0.0, 70, 1, (1, 2, 3, 4, 5), 16).block_hashes(32) == (2, 4)
    assert TraceRequest("d", 0.0, 70, 1).block_hashes(16) is None


def test_where_neither_size_divides_the_other_a_block_is_shared_with_the_id_in_which_it_ends() -> None:
    """Of 48 tokens ten end in the first id of 512, and the eleventh reaches into the second."""
    one = TraceRequest("a", 0.0, 1000, 1, (7, 8), 512).block_hashes(48)
    two = TraceRequest("b", 0.0, 700, 1, (7, 9), 512).block_hashes(48)
    assert one is not None and two is not None and (len(one), len(two)) == (20, 14)
    assert one[:10] == two[:10] and not set(one[10:]) & set(two[10:]) and len(set(one)) == 20
    # Of 784 tokens the first ends in the second id, and the second in the fourth.
    whole = [
        TraceRequest("c", 0.0, 1600, 1, ids, 512).block_hashes(784) for ids in ((1, 2, 3, 4), (1, 2, 5, 6))
    ]
    assert whole[0] and whole[1] and len(whole[0]) == 2
    assert whole[0][0] == whole[1][0] and whole[0][1] != whole[1][1]


def test_all_fields_of_our_format_come_through(tmp_path: Path) -> None:
    """Hash ids, priority, tenant, session and id."""
    request = TraceRequest("mine", 1.5, 40, 2, (3, 4), 16, -2, "acme", "s1")
    path = str(tmp_path / "t")
    write_trace(path, [request], provenance="test", hash_block_tokens=16)
    assert list(read_trace(path)) == [request]
    assert read_trace(path).header["provenance"] == "test"
    with pytest.raises(ConfigError, match="blocks of 16 tokens, the file blocks of 32"):
        write_trace(path, [request], provenance="test", hash_block_tokens=32)
    Path(path).write_text(HEADER + "\n" + good("id", "x") + "\n" + good("id", "x") + "\n")
    with pytest.raises(TraceError, match="'x' was used by an earlier row"):
        list(read_trace(path))


def test_the_shipped_traces_are_what_their_descriptions_make() -> None:
    """Each file in traces/ has a description of its name, which still gives its requests."""
    found = sorted((Path(__file__).parents[3] / "traces").glob("*.jsonl.gz"))
    assert len(found) == 3
    for path in found:
        trace = read_trace(str(path))
        assert trace.header["seed"] == 0 and trace.header["provenance"]
        assert list(trace) == read_spec(str(path).replace(".jsonl.gz", ".toml")).requests(0)


@pytest.mark.bench
def test_reading_speed() -> None:
    """Prints rows per second of the public traces; asserts only that all rows are there."""
    path = SHARED / "azure2023_conv.csv.gz"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    start = time.perf_counter()
    num_rows = sum(1 for _ in read_trace(str(path)))
    seconds = time.perf_counter() - start
    print(f"\n{num_rows} rows in {seconds * 1e3:.1f} ms, {num_rows / seconds:,.0f} rows/s")
    assert num_rows == 19_366


def test_a_key_given_twice_is_refused_by_name(tmp_path: Path) -> None:
    """The first value would be lost without a word; in objects inside, too, and not in texts that look so."""
    row = '{"arrived_at": 0, "num_prefill_tokens": 5, "num_decode_tokens": 2'
    for more, is_twice in (
        (', "num_decode_tokens": 3}', True),
        (', "x": {"a": 1, "a": 2}}', True),
        (', "x": {"a": 1, "b": 2}}', False),
        (', "x": "\\"a\\": 1, \\"a\\": 2"}', False),
    ):
        text = (row + more).encode()
        if is_twice:
            with pytest.raises(TraceError, match="line 7.*twice"):
                decode("trace.jsonl", 7, text, TraceError)
        else:
            assert decode("trace.jsonl", 7, text, TraceError)["num_prefill_tokens"] == 5


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_a_small_file_that_unzips_to_one_endless_line_is_refused(tmp_path: Path) -> None:
    """80 kB of gzip hold 80 MB without an end of a line."""
    file = tmp_path / "trace.jsonl.gz"
    file.write_bytes(gzip.compress(b"1" * (MOST_LINE_BYTES + 2**20)))
    with pytest.raises(TraceError, match="line 1.*longer than 64 MB"):
        list(read_lines(str(file), TraceError))


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [b"", b"the last"])
def test_lines_of_a_plain_file_are_those_of_its_gzipped_copy(tmp_path: Path, end: bytes, last: bytes) -> None:
    """Wherever a block ends: in a line, between the two bytes of an end, or in a line of several blocks."""
    sizes = [
        0,
        5,
        BLOCK_BYTES - 8,
        1,
        3 * BLOCK_BYTES + 7,
        0,
        0,
        BLOCK_BYTES - 2,
        BLOCK_BYTES - 1,
        BLOCK_BYTES,
    ]
    lines = [bytes([65 + number]) * size for number, size in enumerate(sizes)]
    data = b"\xef\xbb\xbf" + end.join([*lines, last])
    (plain := tmp_path / "plain").write_bytes(data)
    (zipped := tmp_path / "zipped").write_bytes(gzip.compress(data))
    found = list(read_lines(str(plain), TraceError))
    assert found == lines + [last] * bool(last) and found == list(read_lines(str(zipped), TraceError))


def test_a_plain_file_of_one_endless_line_is_refused(tmp_path: Path) -> None:
    """Behind a line that is read."""
    file = tmp_path / "trace.jsonl"
    with file.open("wb") as opened:
        opened.write(b"{}\n")
        opened.truncate(MOST_LINE_BYTES + 2**20)
    lines = read_lines(str(file), TraceError)
    assert next(lines) == b"{}"
    with pytest.raises(TraceError, match="line 2.*longer than 64 MB"):
        next(lines)


def test_a_description_is_told_from_a_trace(tmp_path: Path) -> None:
    """Before a list of all trace formats: `plan`, `capacity` and `sweep` take the same file."""
    (spec := tmp_path / "chat.toml").write_text("duration_s = 30\n")
    with pytest.raises(TraceError, match="TOML describes traffic .*`sundog workload FILE -o TRACE`"):
        read_trace(str(spec))
    with pytest.raises(TraceError, match="No such file"):
        read_trace(str(tmp_path / "none.toml"))
