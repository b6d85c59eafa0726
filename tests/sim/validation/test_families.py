"""Recorded errors by family of servers, so that no change makes one worse unnoticed."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sundog.sim.cost.overhead import host_overhead
from sundog.sim.validation.errors import MEANS, FamilyErrors, ValidationRow, by_family, coverages
from sundog.sim.validation.measured import MeasuredServer, Stage
from sundog.sim.validation.predict import Prediction, predict
from sundog.sim.validation.records import find_servers

OWN = Path("sim/validation/servers")
SHARED = Path("../shared/ground_truth")
"""Records that do not come with Sundog."""
OF_OWN = {"qwen3-14b on h100": (2.0, 0.5, 0.5, -1.0)}
OF_SHARED = {
    "llama-2-70b on 4 h100": (2.7, 1.3, 1.3, -2.1),
    "llama-2-7b on h100": (2.2, 0.6, 0.6, -1.8),
    "llama-3.1-8b on RTX4090": (2.5, 0.3, 2.0, None),
    "llama-3.1-8b on RTXPRO6000": (9.6, 4.4, 5.7, None),
}
"""Percent: mean absolute errors of the means of TTFT, TPOT and E2E, and how E2E's rises with load."""
NOISE = 0.3
"""Percent within which nothing has changed. Where more has, write the new figures down here."""


def rows_of(servers: Iterator[MeasuredServer]) -> list[ValidationRow]:
    found = []
    for server in servers:
        if any(stage.num_gave_up for stage in server.stages):
            continue  # nothing of them is counted, and they take long
        predictions = predict(server, host_overhead(server.plans_ahead), "auto")
        found += [ValidationRow(server, *pair) for pair in zip(server.stages, predictions, strict=True)]
    return found


def check(rows: list[ValidationRow], recorded: dict[str, tuple[float, float, float, float | None]]) -> None:
    found = by_family(rows)
    assert found.keys() == recorded.keys()
    for family, (*errors, rise) in recorded.items():
        now = [found[family].errors[name] * 100 for name in MEANS]
        assert now == pytest.approx(errors, abs=NOISE), family
        own = found[family].rise
        assert (own is None) == (rise is None), family
        assert own is None or rise is None or own * 100 == pytest.approx(rise, abs=NOISE), family


@pytest.mark.long(reason="predicts every record that ships")
def test_errors_of_the_shipped_family_are_those_written_down() -> None:
    """A change that moves them says so here."""
    check(rows_of(find_servers(OWN)), OF_OWN)


@pytest.mark.long(rare=True, reason="predicts every record that ships")
@pytest.mark.skipif(not SHARED.is_dir(), reason=f"{SHARED} is not here: other records do not come along")
def test_errors_of_other_families_are_those_written_down() -> None:
    """The same of servers whose records are beside the project."""
    folders = [SHARED / name for name in ("vllm0.15_h100", "vllm0.19_requests")]
    check(rows_of(server for folder in folders for server in find_servers(folder)), OF_SHARED)


def invented(name: str, load: float, error: float, reach: float, model: str = "m") -> ValidationRow:
    """A load whose E2E is predicted with this error, within a range that it fills to this share."""
    real = 10.0
    predicted = real * (1 + error)
    half = abs(predicted - real) / reach
    figures = {"e2e mean": predicted}
    low, high = {"e2e mean": predicted - half}, {"e2e mean": predicted + half}
    stage = Stage("all", 0, 1, 1.0, {"e2e mean": real})
    server = MeasuredServer(name, model, "h100", 1, 8, 512, None, None, True, True, [], [stage])
    return ValidationRow(server, stage, Prediction(figures, load, load, low, high, 0.03, 1.0))


def test_the_rise_of_an_error_is_told_from_loads_below_the_knee() -> None:
    """The lightest against the heaviest up to four fifths of it; one load alone has none."""
    rows = [invented("a", load, error, 0.5) for load, error in ((0.5, -0.03), (0.1, 0.01), (0.9, -0.2))]
    found = by_family([*rows, invented("b", 0.1, 0.02, 0.5, model="other")])
    assert found["m on h100"].rise == pytest.approx(-0.04)
    assert found["m on h100"].errors["e2e mean"] == pytest.approx(0.08)
    assert found["other on h100"] == FamilyErrors(1, {"e2e mean": pytest.approx(0.02)}, None, None)


def test_ranges_are_tried_without_the_server_that_they_are_held_against() -> None:
    """A server twice as far off as all others is outside of the ranges that these need."""
    rows = [invented(name, 0.1, 0.01, 0.4) for name in ("a", "b")] + [invented("c", 0.1, 0.02, 0.8)]
    found = {name: each for kind, name, each in coverages(rows) if kind == "server"}
    assert found["c"].as_is == 1.0 and found["c"].left_out == 0.0
    assert found["c"].scale == pytest.approx(0.4) and found["a"].left_out == 1.0


def test_a_load_is_the_scarcer_of_time_and_slots() -> None:
    """E2E that grows by 3 % with 1 % of a step is at two thirds of the knee, however few slots are taken."""
    prediction = invented("a", 0.14, 0.01, 0.5).prediction
    assert prediction.load == 0.14
    assert replace(prediction, amplification=3.0).load == pytest.approx(2 / 3)
