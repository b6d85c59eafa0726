"""Defaults of the torch backend, by machine."""

from pathlib import Path

import pytest

from sundog.actors.config import ConfigError
from sundog.builds import torch_limits
from sundog.builds.engine_process import ServeOrders
from sundog.builds.torch_limits import check_placement
from sundog.options.engine import EngineOptions
from sundog.options.serving import RealServing

DRAFTS = '{"method": "ngram", "num_speculative_tokens": 2}'


@pytest.mark.parametrize(
    ("device", "has_driver", "engine", "is_async"),
    [
        ("cuda", True, EngineOptions(), True),
        ("auto", True, EngineOptions(), True),
        ("auto", False, EngineOptions(), False),
        ("cpu", True, EngineOptions(), False),
        ("cuda", True, EngineOptions(async_scheduling=False), False),
        ("cuda", True, EngineOptions(speculative_config=DRAFTS), False),
        ("cpu", False, EngineOptions(async_scheduling=True), True),
    ],
)
def test_steps_are_planned_ahead_on_a_gpu(
    device: str,
    has_driver: bool,
    engine: EngineOptions,
    is_async: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unless something was said, or drafts are verified."""
    monkeypatch.setattr(torch_limits, "DRIVER", tmp_path if has_driver else tmp_path / "none")
    opened = ServeOrders(model=None, serving=RealServing(device=device), engine=engine).open()
    assert opened.config.scheduler.async_scheduling is is_async


@pytest.mark.parametrize(
    ("serving", "engine", "refusal"),
    [
        (
            RealServing(num_threads=5),
            EngineOptions(),
            r"--num-threads is 5, and there are 4 cores: give at most 4",
        ),
        (
            RealServing(num_threads=3),
            EngineOptions(replicas=2),
            r"is 3 for each of 2 engine processes, and there are 4 cores: give at most 2",
        ),
        (RealServing(num_threads=4), EngineOptions(tensor_parallel_size=4), "for each of 4 engine processes"),
        (RealServing(num_threads=1, on="ray"), EngineOptions(), "--ray-cpus"),
    ],
)
def test_threads_that_cannot_be_had_are_refused(
    serving: RealServing, engine: EngineOptions, refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a process begins."""
    monkeypatch.setattr("sundog.runtime.host.own_cores.own_cores", lambda: [0, 1, 2, 3])
    with pytest.raises(ConfigError, match=refusal):
        check_placement(serving, engine)


def test_as_many_threads_as_cores_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each replica its part."""
    monkeypatch.setattr("sundog.runtime.host.own_cores.own_cores", lambda: [0, 1, 2, 3])
    check_placement(RealServing(num_threads=2), EngineOptions(replicas=2))
