"""Only the next blocks of a cache get memory before they are written."""

import sys

import numpy as np
import psutil  # type: ignore[import-untyped]  # ships no types
import pytest
import torch

from sundog.actors.core.batch import Admission, Batch
from sundog.actors.core.params.sampling import DEFAULTS
from sundog.runtime.engine.blocks_ahead import BlocksAhead

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux is asked")
PATIENCE_S = 120
BLOCK = 1 << 18
"""Bytes of a block in a layer."""


def cache(num_blocks: int) -> list[torch.Tensor]:
    flat = torch.from_numpy(np.zeros(2 * num_blocks * BLOCK, np.uint8))
    return list(flat.view(2, num_blocks, BLOCK))


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


def finished(ahead: BlocksAhead) -> None:
    thread = ahead.begin()
    if thread is not None:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def batch(*block_ids: int) -> Batch:
    admission = Admission("a", 1, 1, 0, block_ids, None, DEFAULTS)
    return Batch(1, admitted=(admission,))


def test_blocks_are_ready_before_they_are_used_and_no_more_than_asked_for() -> None:
    layers = cache(400)
    before = resident()
    ahead = BlocksAhead(layers, 100)
    finished(ahead)
    assert 150 * BLOCK < resident() - before < 300 * BLOCK
    assert not layers[0][:100].any()


@pytest.mark.long(reason="computes many steps of a model", moderate=True)
def test_blocks_in_use_have_more_made_ready_behind_them() -> None:
    ahead = BlocksAhead(cache(400), 100)
    finished(ahead)
    assert ahead._num_ready == 100
    ahead.follow(batch(40))
    finished(ahead)
    assert ahead._num_ready == 100  # more than half of them are left
    ahead.follow(batch(3, 90, 7))
    finished(ahead)
    assert ahead._num_ready == 191
    ahead.follow(batch(399))
    finished(ahead)
    assert ahead._num_ready == 400
    last = ahead._thread
    ahead.follow(batch(5, 399))
    assert ahead._thread is last  # nothing is left to do


def test_steps_of_any_size_take_no_more_than_half_a_gigabyte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor more blocks than there are; blocks that are larger than that are left to their first writers."""
    monkeypatch.setattr("sundog.runtime.engine.blocks_ahead.MOST_BYTES", 20 * 2 * BLOCK)
    ahead = BlocksAhead(cache(100), 10**9)
    finished(ahead)
    assert ahead._num_ready == 20
    monkeypatch.setattr("sundog.runtime.engine.blocks_ahead.MOST_BYTES", BLOCK)
    assert BlocksAhead(cache(100), 10**9).begin() is None


def test_where_the_kernel_does_not_do_it_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "sundog.memory")
    monkeypatch.setattr("sundog.runtime.engine.blocks_ahead.MADV_POPULATE_WRITE", 9999)
    ahead = BlocksAhead(cache(400), 100)
    finished(ahead)
    ahead.follow(batch(200))
    finished(ahead)
    assert caplog.text.count("blocks get memory when they are first written: Invalid argument") == 1
