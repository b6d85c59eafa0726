"""Generated workloads: seeded, independent by stream, with the moments asked for."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sundog.actors.core.config import ConfigError
from sundog.sim.trace.jsonl_rows import write_trace
from sundog.sim.trace.read import read_trace
from sundog.sim.workload import stream
from sundog.sim.workload.distributions import (
    Diurnal,
    Empirical,
    Fixed,
    Gamma,
    LogNormal,
    OnOff,
    Poisson,
    Uniform,
    Zipf,
)
from sundog.sim.workload.read import read_spec
from sundog.sim.workload.spec import Workload

TRACES = Path(__file__).parents[3] / "traces"
CHAT_TRACE = TRACES / "chat-poisson-2rps-5min.jsonl.gz"
CHAT, SESSIONS = (
    read_spec(TRACES / f"{name}.toml") for name in ("chat-poisson-2rps-5min", "sessions-diurnal-10min")
)


def test_the_same_seed_gives_the_same_requests() -> None:
    """And another seed gives others."""
    assert CHAT.requests(5) == CHAT.requests(5) != CHAT.requests(6)


def test_changing_the_lengths_leaves_the_arrivals() -> None:
    """Each quantity has a stream of its own name."""
    other = Workload(CHAT.duration_s, CHAT.arrivals, Uniform(1, 9), Uniform(1, 9))
    arrivals = [[r.arrival_s for r in load.requests(1)] for load in (CHAT, other)]
    assert arrivals[0] == arrivals[1]
    assert stream(1, "a").random() != stream(1, "b").random()


def test_rate_and_lengths_are_those_asked_for() -> None:
    """Means within a few standard errors, lengths within their limits."""
    load = Workload(400.0, Poisson(50.0), LogNormal(1155, 1020, 100_000), Uniform(10, 20))
    requests = load.requests(0)
    prompts = np.array([r.num_prompt_tokens for r in requests])
    outputs = np.array([r.num_output_tokens for r in requests])
    assert len(requests) == pytest.approx(20_000, rel=0.03)
    assert prompts.mean() == pytest.approx(1155, rel=0.02)
    assert np.median(prompts) == pytest.approx(1020, rel=0.02)
    assert (outputs.min(), outputs.max()) == (10, 20)
    assert requests[0].arrival_s >= 0 and requests[-1].arrival_s < 400


def test_impossible_workloads_are_refused() -> None:
    """A rate of nothing, a median above the mean, an empty span."""
    for make in (
        lambda: Poisson(0.0),
        lambda: LogNormal(10, 20, 100),
        lambda: Uniform(0, 5),
        lambda: Uniform(6, 5),
    ):
        with pytest.raises(ConfigError):
            make()


@pytest.mark.parametrize(
    "arrivals",
    [
        Poisson(5.0),
        Gamma(5.0, 0.0),
        Gamma(5.0, 0.5),
        Gamma(5.0, 4.0),
        OnOff(9.0, 20.0, 16.0),
        OnOff(8.0, 5.0, 5.0, 2.0),
        Diurnal(5.0, 4.0, 1000.0),
    ],
    ids=repr,
)
def test_every_arrival_process_keeps_its_rate_and_order(arrivals: Any) -> None:
    """Over many periods and bursts; instants never fall and stay within the span."""
    times = arrivals.times(stream(3, "arrivals"), 20_000.0)
    times = times[times < 20_000.0]
    assert len(times) == pytest.approx(100_000, rel=0.06)
    assert times[0] >= 0 and (np.diff(times) >= 0).all()


def test_gamma_gaps_have_their_coefficient_of_variation() -> None:
    """Below, at and above Poisson's."""
    for cv in (0.5, 1.0, 3.0):
        gaps = np.diff(Gamma(10.0, cv).times(stream(1, "x"), 20_000.0))
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


def test_a_diurnal_rate_peaks_half_a_period_in() -> None:
    """`peak_to_trough` times the rate of the start."""
    times = Diurnal(50.0, 3.0, 1000.0).times(stream(1, "x"), 1000.0)
    counts, _ = np.histogram(times, bins=20, range=(0, 1000))
    ends, middle = (counts[0] + counts[-1]) / 2, (counts[9] + counts[10]) / 2
    assert middle / ends == pytest.approx(3.0, rel=0.15)


def test_zipf_lengths_fall_as_a_power() -> None:
    """Twice the length is 2 ** exponent times as rare; the limits hold."""
    drawn = Zipf(1.5, 1000, 10).draw(stream(0, "x"), 400_000)
    counts = np.bincount(drawn)
    assert drawn.min() == 10 and drawn.max() <= 1000
    assert counts[10] / counts[20] == pytest.approx(2**1.5, rel=0.05)


def test_empirical_lengths_are_those_of_the_trace() -> None:
    """Drawn with replacement, perhaps scaled."""
    known = {row.num_output_tokens for row in read_trace(str(CHAT_TRACE))}
    drawn = Empirical(str(CHAT_TRACE), "output").draw(stream(0, "x"), 500)
    assert set(drawn.tolist()) <= known
    assert Empirical(str(CHAT_TRACE), "output", 1e-9).draw(stream(0, "x"), 9).tolist() == [1] * 9


def test_a_turn_holds_all_that_was_said_before() -> None:
    """Its prompt is the last prompt, the answer to it and what is new; its contents begin alike."""
    rows = {row.request_id: row for row in SESSIONS.requests(1)}
    later = [row for row in rows.values() if row.after]
    assert len(later) > 300
    for row in later:
        last = rows[row.after[0]]
        said = last.num_prompt_tokens + last.num_output_tokens
        assert row.num_prompt_tokens > said and row.session == last.session
        assert row.tenant == last.tenant and row.pause_s > 0
        assert row.arrival_s == pytest.approx(last.arrival_s + row.pause_s)
        assert row.hash_ids is not None and last.hash_ids is not None
        assert row.hash_ids[: len(last.hash_ids)] == last.hash_ids
        assert len(row.hash_ids) == row.num_prompt_tokens // 16
    first = [row for row in rows.values() if not row.after]
    systems = Counter(row.hash_ids[:32] for row in first if row.hash_ids)
    assert len(systems) == 4, "four system prompts of 512 tokens, and nothing else in common"
    shares = Counter(row.tenant for row in first)
    assert shares["paid"] / len(first) == pytest.approx(0.3, abs=0.08)


def test_a_written_workload_reads_back(tmp_path: Path) -> None:
    """Sessions, pauses and contents included."""
    path = str(tmp_path / "w.jsonl.gz")
    rows = SESSIONS.requests(2)
    write_trace(path, rows, provenance="test", hash_block_tokens=16)
    assert list(read_trace(path)) == rows


SPEC = """
duration_s = 60
[arrivals]
kind = "poisson"
rate_per_s = 2
[prompt]
kind = "fixed"
tokens = 100
[output]
kind = "uniform"
smallest = 1
largest = 9
"""


def test_a_file_describes_a_workload(tmp_path: Path) -> None:
    """The same as the object; or a recorded trace, scaled."""
    path = tmp_path / "w.toml"
    path.write_text(SPEC)
    assert read_spec(path) == Workload(60.0, Poisson(2.0), Fixed(100), Uniform(1, 9))
    path.write_text(f'[scaled]\ntrace = "{CHAT_TRACE}"\nrate_scale = 2\noutput_scale = 0.5\n')
    before, after = CHAT.requests(0), read_spec(path).requests(0)
    assert [row.arrival_s for row in after] == [round(r.arrival_s / 2, 9) for r in before]
    assert [r.num_prompt_tokens for r in after] == [r.num_prompt_tokens for r in before]
    assert after[5].num_output_tokens == max(round(before[5].num_output_tokens / 2), 1)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("duration_s = 60", "", "duration_s: it is missing"),
        ("duration_s = 60", "duration_s = nan", "duration_s is nan: it must be above 0"),
        ("rate_per_s = 2", "rate_per_s = -2", "arrivals.poisson: rate_per_s is -2"),
        ("rate_per_s = 2", "rate = 2", "arrivals.poisson.rate: there is no such key"),
        ("rate_per_s = 2", "rate = 2", "Did you mean rate_per_s.*Known here: rate_per_s, kind"),
        ("rate_per_s = 2", 'rate_per_s = "2"', "arrivals.poisson.rate_per_s: .* valid number"),
        ('kind = "fixed"', 'kind = "fix"', "prompt.kind: there is no 'fix'. Did you mean fixed.*Known"),
        ('kind = "fixed"', "", "prompt.kind: it is missing. Known here: .*fixed.*uniform"),
        ("tokens = 100", "tokens = 0", "lengths from 0 to 0"),
        ("largest = 9", "largest = 0", "lengths from 1 to 0"),
        ("[output]", "[scaled]", "cannot be combined with the table scaled"),
        ("[output]", "[output", "is not TOML"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, old: str, new: str, reason: str) -> None:
    """One error with the file, the field and what is wrong."""
    path = tmp_path / "w.toml"
    assert old in SPEC
    path.write_text(SPEC.replace(old, new, 1))
    with pytest.raises(ConfigError, match=reason) as caught:
        read_spec(path)
    assert str(path) in str(caught.value)
