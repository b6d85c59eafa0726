"""Number of threads that an engine computes with: all cores, one fewer for a small model, or as requested."""

from pathlib import Path

import pytest
import torch

from sundog.actors.core.config import ConfigError
from sundog.runtime.engine.backend import TorchBackend
from sundog.runtime.engine.model_loader import ModelLoader
from sundog.runtime.host import threads
from sundog.runtime.host.threads import SMALL_BYTES, leave_a_core, set_threads
from sundog.runtime.model import model
from sundog.runtime.model.model import LONG_STEP_ROWS
from sundog.runtime.serve import EMBEDDED_MODEL, RealModel
from tests.runtime.driver import Driver
from tests.runtime.models import random_prompt


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What torch is told on a machine of four cores; this process keeps its own."""
    told = list[int]()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "own_cores", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(torch, "get_num_threads", lambda: told[-1] if told else 4)
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    return told


def folder_of(num_bytes: int, folder: Path) -> Path:
    """A model's folder by its size."""
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(num_bytes)
    return folder


def test_a_small_model_leaves_a_core_to_the_server(chosen: list[int], tmp_path: Path) -> None:
    """A large one takes all, and so do its own long steps."""
    assert leave_a_core(folder_of(SMALL_BYTES + 1, tmp_path)) == 4
    assert chosen == []
    assert leave_a_core(folder_of(SMALL_BYTES, tmp_path)) == 4
    assert chosen == [3]


def test_one_core_is_not_left(chosen: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody must compute."""
    monkeypatch.setattr(threads, "own_cores", lambda: [2])
    leave_a_core(folder_of(1, tmp_path))
    assert chosen == [1]


def test_the_environment_is_obeyed(
    chosen: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OMP_NUM_THREADS is how people say it to torch."""
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    leave_a_core(folder_of(1, tmp_path))
    assert chosen == []


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(("asked", "told"), [(None, [3]), (4, [4]), (2, [2])])
def test_the_embedded_model_is_opened_so(chosen: list[int], asked: int | None, told: list[int]) -> None:
    """It is a small one; what is asked for goes before that."""
    ModelLoader(RealModel.open(None).folder, max_model_len=64, num_gpu_blocks=16, num_threads=asked).open()
    assert chosen == told


@pytest.mark.parametrize("asked", [0, 5])
def test_more_threads_than_cores_are_refused(chosen: list[int], asked: int) -> None:
    """They would only wait for each other."""
    with pytest.raises(ConfigError, match=rf"--num-threads is {asked}: there are 1 to 4 cores"):
        set_threads(asked)
    assert chosen == []


@pytest.mark.long(reason="computes many steps of a model", moderate=True)
async def test_a_long_step_answers_the_same_on_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded model's prompt of many tokens is computed by a thread more than its answer."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    prompt = random_prompt(3, LONG_STEP_ROWS + 9)
    found = []
    try:
        for rows in (LONG_STEP_ROWS, LONG_STEP_ROWS + 10):
            monkeypatch.setattr(model, "LONG_STEP_ROWS", rows)
            torch.set_num_threads(2)
            backend = TorchBackend(EMBEDDED_MODEL, max_model_len=1024, num_gpu_blocks=300, block_size=4)
            await backend.load()
            torch.set_num_threads(1)
            driver = Driver(backend, num_blocks=300)
            driver.submit("a", prompt)
            found.append((await driver.run(5))["a"])
            await backend.close()
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1]
