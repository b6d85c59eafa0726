"""Populations in one workload, and traces that are merged."""

from pathlib import Path

import pytest

from sundog.actors.core.config import ConfigError
from sundog.sim.trace.jsonl_rows import write_trace
from sundog.sim.trace.read import read_trace
from sundog.sim.trace.record import TraceRequest
from sundog.sim.workload.mixture import Mixture, merged
from sundog.sim.workload.read import read_spec
from sundog.sweeps.axes import with_fields
from tests import warm

SPEC = """
duration_s = 60

[[populations]]
name = "chat"
arrivals = {kind = "poisson", rate_per_s = 4}
prompt = {kind = "fixed", tokens = 100}
output = {kind = "fixed", tokens = 20}

[populations.sessions]
turns = {kind = "fixed", tokens = 3}
followup = {kind = "fixed", tokens = 50}
pause_mean_s = 2
pause_median_s = 1

[[populations]]
name = "rag"
arrivals = {kind = "poisson", rate_per_s = %s}
prompt = {kind = "fixed", tokens = 5000}
output = {kind = "fixed", tokens = 7}
system_prompts = {tokens = 320}
priority = 2
slo_ttft_s = 3.0
"""


def mixture(folder: Path, rate: str = "1") -> Mixture:
    path = folder / "mix.toml"
    path.write_text(SPEC % rate)
    found = read_spec(path)
    assert isinstance(found, Mixture)
    return found


def test_each_population_keeps_its_own(tmp_path: Path) -> None:
    """Lengths, priority, limits and sessions; arrivals are in order, and after one of the same session."""
    rows = mixture(tmp_path).requests(3)
    assert [row.arrival_s for row in rows] == sorted(row.arrival_s for row in rows)
    of = {name: [row for row in rows if row.tenant == name] for name in ("chat", "rag")}
    assert len(of["chat"]) + len(of["rag"]) == len(rows) and all(of.values())
    assert {row.num_prompt_tokens for row in of["rag"]} == {5320}
    assert {(row.priority, row.slo_ttft_s, row.session) for row in of["rag"]} == {(2, 3.0, None)}
    known = {row.request_id for row in rows}
    assert len(known) == len(rows)
    assert all(known.issuperset(row.after) for row in of["chat"])
    ids = {name: {i for row in own for i in row.hash_ids or ()} for name, own in of.items()}
    assert not ids["chat"] & ids["rag"] and ids["rag"]


def test_a_rate_leaves_the_other_population_as_it_was(tmp_path: Path) -> None:
    """Common random numbers hold for a population while another changes; another seed changes both."""

    def chat(rate: str, seed: int) -> list[tuple[str, float]]:
        rows = mixture(tmp_path, rate).requests(seed)
        return [(row.request_id, row.arrival_s) for row in rows if row.tenant == "chat"]

    assert chat("1", 0) == chat("5", 0) != chat("1", 1)


def test_a_sweep_varies_a_population_by_name() -> None:
    """The description that it was given stays as it was; a name that is none is refused."""
    given = {"populations": [{"name": "chat", "arrivals": {"rate_per_s": 1}}, {"name": "rag"}]}
    where = "workload.populations"
    found = with_fields(given, {f"{where}.chat.arrivals.rate_per_s": 5, f"{where}.rag.x": 1})
    assert found["populations"] == [{"name": "chat", "arrivals": {"rate_per_s": 5}}, {"name": "rag", "x": 1}]
    assert given["populations"][0] == {"name": "chat", "arrivals": {"rate_per_s": 1}}
    for wrong in ("workload.populations.web.x", "workload.populations.x", "workload.population.rag.x"):
        with pytest.raises(ConfigError, match="--vary has"):
            with_fields(given, {wrong: 1})


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"rag"', '"chat"', "each needs its own"),
        ("tokens = 7", "tokens = 0", "populations"),
        ("slo_ttft_s", "slo_tft_s", "slo_tft_s"),
    ],
)
def test_a_wrong_population_is_refused(tmp_path: Path, old: str, new: str, reason: str) -> None:
    """The error names the key."""
    path = tmp_path / "mix.toml"
    path.write_text((SPEC % "1").replace(old, new))
    with pytest.raises(ConfigError, match=reason):
        read_spec(path)


def test_traces_are_merged_by_arrival(tmp_path: Path) -> None:
    """Each file is a tenant, and contents of one are never those of another; sizes of blocks must agree."""
    a = [TraceRequest("0", 0.0, 32, 1, (0, 1), 16), TraceRequest("1", 2.0, 32, 1, (0, 2), 16, tenant="paid")]
    b = [TraceRequest("0", 1.0, 16, 1, (0,), 16)]
    files = [str(tmp_path / name) for name in ("one.jsonl", "two.jsonl")]
    for file, rows in zip(files, (a, b), strict=True):
        write_trace(file, rows, provenance="a test", seed=0, hash_block_tokens=16)
    done = warm.run("sundog", "trace", *files, "-o", str(tmp_path / "both.jsonl"))
    assert done.returncode == 0, done.stderr
    found = list(read_trace(str(tmp_path / "both.jsonl")))
    assert [(row.request_id, row.tenant) for row in found] == [
        ("one.0", "one"),
        ("two.0", "two"),
        ("one.1", "paid"),
    ]
    assert [row.hash_ids for row in found] == [(0, 1), (3,), (0, 2)]
    with pytest.raises(ConfigError, match="16 and 32"):
        merged([("a", a), ("b", [TraceRequest("0", 0.0, 32, 1, (0,), 32)])])
