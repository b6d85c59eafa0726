"""What the torch backend does by default, by where it runs."""

from pathlib import Path

import pytest

from sundog import torch_limits
from sundog.engine_process import Orders
from sundog.options.engine import Engine
from sundog.options.serving import Serving

DRAFTS = '{"method": "ngram", "num_speculative_tokens": 2}'


@pytest.mark.parametrize(
    ("device", "has_driver", "engine", "is_async"),
    [
        ("cuda", True, Engine(), True),
        ("auto", True, Engine(), True),
        ("auto", False, Engine(), False),
        ("cpu", True, Engine(), False),
        ("cuda", True, Engine(async_scheduling=False), False),
        ("cuda", True, Engine(speculative_config=DRAFTS), False),
        ("cpu", False, Engine(async_scheduling=True), True),
    ],
)
def test_steps_are_planned_ahead_on_a_gpu(
    device: str,
    has_driver: bool,
    engine: Engine,
    is_async: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unless something was said, or drafts are verified."""
    monkeypatch.setattr(torch_limits, "DRIVER", tmp_path if has_driver else tmp_path / "none")
    opened = Orders(model=None, serving=Serving(device=device), engine=engine).open()
    assert opened.config.scheduler.async_scheduling is is_async
