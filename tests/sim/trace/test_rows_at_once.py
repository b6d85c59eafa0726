"""Fast reading of CSV rows: an invalid row is reported at its line, after all rows before it."""

import gzip
from pathlib import Path

import pytest

from sundog.sim.trace.read import read_trace
from sundog.sim.trace.record import TraceError, TraceRequest

NUM_ROWS = 1_300
HEADER = "arrived_at,num_prefill_tokens,num_decode_tokens"


def row(number: int) -> str:
    return f"{number / 8:.6f},{number % 900 + 1},{number % 70 + 1}"


def wanted(number: int) -> TraceRequest:
    return TraceRequest(f"r{number:07}", number / 8, number % 900 + 1, number % 70 + 1)


def read_until_it_fails(path: Path) -> tuple[list[TraceRequest], str]:
    found: list[TraceRequest] = []
    try:
        found += read_trace(str(path))
    except TraceError as error:
        return found, str(error)
    return found, ""


def test_all_rows_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("\n".join([HEADER, *map(row, range(NUM_ROWS))]) + "\n")
    assert read_until_it_fails(path) == ([wanted(number) for number in range(NUM_ROWS)], "")


@pytest.mark.parametrize("place", [0, 1, 2, 511, 512, 513, 700, 1_025, NUM_ROWS - 1])
@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("", "blank"),
        ("1.0,5", "2 columns instead of 3"),
        ("9999,5,5,5", "4 columns instead of 3"),
        ("nan,5,5", "NaN"),
        ("inf,5,5", "later than"),
        ("1_0,5,5", "not a number"),
        ("x,5,5", "not a number"),
        ("-1,5,5", "-1 s is"),
        ("1e9,5,5", "later than"),
        ("{when},0,5", "0 prompt tokens"),
        ("{when},5,0", "0 output tokens"),
        ("{when},,5", "not a whole number"),
        ("{when},5.0,5", "not a whole number"),
        ("{when},-5,5", "not negative"),
        ("{when},5,999999999", "more than 100,000,000 output"),
    ],
)
def test_a_bad_row_is_named_behind_all_before_it(tmp_path: Path, place: int, bad: str, says: str) -> None:
    if place == 0 and bad == "1e9,5,5":
        pytest.skip("a first instant as late as that is a date")
    rows = [row(number) for number in range(NUM_ROWS)]
    rows[place] = bad.format(when=place / 8)
    path = tmp_path / "trace.csv"
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    found, error = read_until_it_fails(path)
    assert found == [wanted(number) for number in range(place)]
    assert f"line {place + 2}" in error and says in error


def test_a_row_before_the_one_above_is_refused_where_reading_together_ends(tmp_path: Path) -> None:
    rows = [row(number) for number in range(NUM_ROWS)]
    rows[513] = row(3)
    path = tmp_path / "trace.csv"
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    found, error = read_until_it_fails(path)
    assert len(found) == 513 and "line 515" in error and "sort the rows" in error


def test_rows_before_a_break_of_the_file_are_read(tmp_path: Path) -> None:
    """Lines that gzip gave before its data ended are rows like any other."""
    path = tmp_path / "trace.csv.gz"
    whole = gzip.compress("\n".join([HEADER, *map(row, range(60_000))]).encode(), 1)
    path.write_bytes(whole[: len(whole) // 2])
    found, error = read_until_it_fails(path)
    assert len(found) > 10_000 and found == [wanted(number) for number in range(len(found))]
    assert f"line {len(found) + 2}" in error and "ends too early" in error
