"""Damaged runs (truncated, incomplete, other version, no run): one line with the file and the remedy."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import warm

TRACE = "traces/chat-poisson-2rps-5min.jsonl.gz"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    done = warm.run("sundog", "replay", TRACE, "--limit", "20", "--out", folder)
    assert done.returncode == 0, done.stderr
    return folder


def without(*names: str) -> Callable[[Path], None]:
    def act(file: Path) -> None:
        table = pq.read_table(file)  # type: ignore[no-untyped-call]  # pyarrow has no types
        pq.write_table(table.drop_columns(list(names)), file)  # type: ignore[no-untyped-call]

    return act


def of_texts(name: str) -> Callable[[Path], None]:
    def act(file: Path) -> None:
        table = pq.read_table(file)  # type: ignore[no-untyped-call]
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, pa.array(["x"] * table.num_rows))
        pq.write_table(table, file)  # type: ignore[no-untyped-call]

    return act


def first_bytes(count: int) -> Callable[[Path], None]:
    return lambda file: (file.write_bytes(file.read_bytes()[:count]), None)[1]


def with_figures(**figures: object) -> Callable[[Path], None]:
    def act(file: Path) -> None:
        file.write_text(json.dumps(json.loads(file.read_text()) | figures))

    return act


DAMAGE = [
    ("requests.parquet", first_bytes(3000), ("cut off or damaged", "replay --config", "--out NEW")),
    ("requests.parquet", first_bytes(0), ("cut off or damaged",)),
    ("requests.parquet", Path.unlink, ("has no requests.parquet", "whole")),
    ("requests.parquet", without("tenant", "slo_e2e_s"), ("no column tenant, slo_e2e_s", "another version")),
    ("requests.parquet", of_texts("ttft_s"), ("column ttft_s holds string",)),
    ("summary.json", first_bytes(300), ("summary.json", "line")),
    ("summary.json", with_figures(num_requests=None), ("is not the summary of a run",)),
    ("summary.json", with_figures(ttft_s="x"), ("ttft_s is 'x'",)),
    ("config.toml", Path.unlink, ("has no config.toml", "replay --out")),
]


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(("file", "act", "words"), DAMAGE)
def test_a_damaged_run_is_one_line_with_the_file_and_the_cure(
    whole: Path, tmp_path: Path, file: str, act: Callable[[Path], None], words: tuple[str, ...]
) -> None:
    """Whether it is compared or shown."""
    broken = tmp_path / "broken"
    shutil.copytree(whole, broken)
    act(broken / file)
    page = tmp_path / "page.html"
    for done in (
        warm.run("sundog", "compare", whole, broken),
        warm.run("sundog", "report", broken, "-o", page),
    ):
        assert done.returncode == 2, done.stderr
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        for word in (str(broken), *words):
            assert word in done.stderr
    assert not page.exists()


def test_steps_that_are_cut_off_are_missed_where_they_are_read(whole: Path, tmp_path: Path) -> None:
    """A report draws them; a comparison needs none."""
    broken = tmp_path / "broken"
    shutil.copytree(whole, broken)
    first_bytes(500)(broken / "steps.parquet")
    done = warm.run("sundog", "report", broken, "-o", tmp_path / "page.html")
    assert done.returncode == 2 and f"{broken}/steps.parquet is cut off or damaged" in done.stderr
    assert warm.run("sundog", "compare", whole, broken).returncode == 0


def test_a_foreign_folder_is_no_run(tmp_path: Path) -> None:
    """Even one that happens to have a summary.json."""
    (tmp_path / "summary.json").write_text('{"a": 1}')
    for command in (("report",), ("compare", tmp_path)):
        done = warm.run("sundog", *command, tmp_path)
        assert done.returncode == 2 and "is not the summary of a run" in done.stderr, done.stderr
