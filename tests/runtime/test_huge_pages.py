"""Weights move to huge pages in the background, unchanged."""

import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from sundog.runtime.host.memory import HUGE_PAGE
from sundog.runtime.native.huge_pages import move_to_huge_pages, weight_ranges
from sundog.runtime.native.linear import pack_linears

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux moves pages")
PATIENCE_S = 120


def huge_bytes(address: int) -> int:
    """How much of the mapping around an address lies on huge pages."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= address < int(found[2], 16)
        elif inside and line.startswith("AnonHugePages:"):
            return int(line.split()[1]) * 1024
    return 0


@pytest.mark.long(reason="moves the weights of a large model")
def test_moved_weights_are_the_same(caplog: pytest.LogCaptureFixture) -> None:
    """A plain and a packed layer; whoever cannot move them says why."""
    caplog.set_level("INFO", "sundog.memory")
    torch.manual_seed(0)
    plain, wide = nn.Bilinear(1, 2048, 2048), nn.Linear(2048, 4096, dtype=torch.bfloat16)
    model = nn.ModuleList([plain, wide])
    ones = torch.ones(3, 1)
    x = torch.randn(3, 2048)
    before = plain(ones, x), wide(x.bfloat16())
    pack_linears(model)
    ranges = weight_ranges(model)
    assert sum(end - first for first, end in ranges) > 4 * HUGE_PAGE
    assert all(first % HUGE_PAGE == 0 and end % HUGE_PAGE == 0 for first, end in ranges)
    thread = move_to_huge_pages(ranges)
    assert thread is not None
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert caplog.text or all(huge_bytes(first) >= end - first for first, end in ranges)
    after = plain(ones, x), model[1](x.bfloat16())
    torch.testing.assert_close(after[0], before[0], rtol=0, atol=0)
    torch.testing.assert_close(after[1], before[1], rtol=1e-2, atol=1e-2)


def test_what_cannot_move_is_left(caplog: pytest.LogCaptureFixture) -> None:
    """Addresses of nothing: one line in the log, no error."""
    caplog.set_level("INFO", "sundog.memory")
    thread = move_to_huge_pages({(HUGE_PAGE, 3 * HUGE_PAGE)})
    assert thread is not None
    thread.join(PATIENCE_S)
    assert "0 of 2 pages of weights are huge ones" in caplog.text


def test_small_weights_need_no_thread() -> None:
    """Less than a huge page stays where it is."""
    assert move_to_huge_pages(weight_ranges(nn.Linear(64, 64))) is None
