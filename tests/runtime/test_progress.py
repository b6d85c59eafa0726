"""Progress reports of a running load."""

import logging
import threading
import weakref
from pathlib import Path

import pytest

from sundog.runtime.host.progress import LoadProgress
from tests.live import live


def test_what_is_done_is_said_once_with_its_share(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sundog.loading")
    progress = LoadProgress("model")
    progress.say()
    progress.stage("reading weights")
    for _ in range(3):
        progress.say()
    for _ in progress.each("packing weights", [(name, 300_000_000) for name in "abcd"]):
        progress.say()
    assert caplog.messages == [
        "loading model: reading weights",
        *(f"loading model: packing weights, {share} % of 1.20 GB" for share in (0, 20, 50, 70)),
    ]


def test_items_are_let_go_of_one_after_the_other() -> None:
    """Weights that have been packed leave memory before the last is read."""

    class Weights:
        """A large thing."""

    found = list[weakref.ref[Weights]]()
    for item in LoadProgress("model").each("packing weights", ((Weights(), 1) for _ in range(3))):
        assert all(before() is None for before in found[:-1])
        found.append(weakref.ref(item))
    assert len(found) == 3


def test_nothing_is_at_work_when_loading_is_over() -> None:
    with LoadProgress("model").shown():
        pass
    assert not any(thread.name == "progress" for thread in threading.enumerate())


@pytest.mark.long(reason="computes many steps of a model", moderate=True)
def test_a_cold_server_says_that_it_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On stderr, before it serves; a compiler that fails ends the wait, and costs speed alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "false")
    monkeypatch.delenv("SUNDOG_NATIVE", raising=False)
    with live("sundog", "serve", "--port", "0") as server:
        said = "".join(server.said)
    assert "compiling kernels for this CPU" in said
    assert said.index("compiling kernels") < said.index("computing without compiled kernels")
