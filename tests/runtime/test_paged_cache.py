"""The paged cache: memory, number of blocks, and places of tokens."""

import re
import subprocess
import sys
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # ships no types
import pytest
import torch

from sundog.actors.core.config import ConfigError
from sundog.runtime.attention.paged_cache import (
    LayerShape,
    PagedKVCache,
    block_bytes,
    choose_num_blocks,
    free_bytes,
)
from sundog.runtime.host.memory import HUGE_PAGE

LAYERS = [LayerShape(2, 24, 16, torch.bfloat16), LayerShape(2, 8, 8, torch.float32)]
LIMITS = {"block_size": 16, "max_model_len": 256, "max_num_seqs": 4}


def test_a_block_costs_what_its_tensors_hold() -> None:
    """Bytes per block times blocks is the size of all tensors, whatever widths layers have."""
    cache = PagedKVCache(LAYERS, num_blocks=5, block_size=16, device=torch.device("cpu"))
    tensors = [*cache.keys_SPKD, *cache.values_SPKE]
    assert sum(t.nbytes for t in tensors) == 5 * block_bytes(LAYERS, 16)
    assert cache.num_blocks == 5


def test_blocks_go_from_cache_to_cache_byte_for_byte_and_leave_all_others() -> None:
    """In any order, whatever widths and types layers have; other numbers of bytes are refused."""
    cpu = torch.device("cpu")
    one, other = (PagedKVCache(LAYERS, num_blocks=6, block_size=16, device=cpu) for _ in range(2))
    for layer in one.layers:
        layer.copy_(torch.randn(layer.shape))
    other.fill([1, 5], one.read([4, 2]))
    for there, here in zip(one.layers, other.layers, strict=True):
        assert torch.equal(here[[1, 5]], there[[4, 2]]) and not here[[0, 2, 3, 4]].any()
    with pytest.raises(ValueError, match="are not 1 blocks of"):
        other.fill([3], one.read([4, 2]))


def test_blocks_fill_the_memory_given() -> None:
    assert choose_num_blocks(1000, 40_500, **LIMITS) == 40


def test_no_more_blocks_are_made_than_requests_can_use() -> None:
    """Four requests of sixteen blocks, and the null block."""
    assert choose_num_blocks(1000, 10**9, **LIMITS) == 4 * 16 + 1


def test_too_little_memory_names_need_have_and_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"needs 16\.6 KiB .* has 1000 B; lower --max-model-len"):
        choose_num_blocks(1000, 1000, **LIMITS)


def test_more_blocks_wanted_than_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"not enough memory .* lower --num-gpu-blocks"):
        choose_num_blocks(1000, 20_000, **LIMITS, wanted=21)


def test_fewer_blocks_wanted_than_one_request_needs_are_refused() -> None:
    with pytest.raises(ConfigError, match="--num-gpu-blocks 16 cannot hold one request"):
        choose_num_blocks(1000, 10**9, **LIMITS, wanted=16)


def test_a_share_of_the_cpus_memory_is_taken() -> None:
    cpu = torch.device("cpu")
    assert 0 < free_bytes(cpu, 0.1) < free_bytes(cpu, 0.2)


def test_tokens_are_kept_in_their_slots() -> None:
    """Slot s is block s // block_size, offset s % block_size; nothing else changes."""
    cache = PagedKVCache(LAYERS[1:], num_blocks=4, block_size=16, device=torch.device("cpu"))
    k_TKD, v_TKE = torch.ones(2, 2, 8), torch.full((2, 2, 8), 2.0)
    cache.write(0, torch.tensor([3 * 16 + 5, 16]), k_TKD, v_TKE)
    assert (cache.keys_SPKD[0][3, 5] == 1).all() and (cache.values_SPKE[0][1, 0] == 2).all()
    assert cache.keys_SPKD[0].sum() == k_TKD.sum()


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_blocks_take_memory_when_they_are_written_and_not_before() -> None:
    """A pool of a gigabyte costs next to nothing until requests fill it; a child has its own peak."""
    code = """
import psutil, torch
from sundog.runtime.attention.paged_cache import LayerShape, PagedKVCache, block_bytes
layers = [LayerShape(8, 64, 64, torch.bfloat16)] * 4
process = psutil.Process()
before = process.memory_info().rss
num_blocks = 2**30 // block_bytes(layers, 16)
cache = PagedKVCache(layers, num_blocks, 16, torch.device("cpu"))
made = process.memory_info().rss
for layer in range(4):
    cache.write(layer, torch.arange(64), torch.ones(64, 8, 64).bfloat16(), torch.ones(64, 8, 64).bfloat16())
written = process.memory_info().rss
assert sum(t.nbytes for t in cache.keys_SPKD + cache.values_SPKE) > 1000 * 2**20
assert not cache.values_SPKE[3][-1].any() and cache.keys_SPKD[0][3].all()
print((made - before) >> 20, (written - before) >> 20)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    made, written = map(int, done.stdout.split())
    assert made < 50 and written < 150


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux is asked")
def test_blocks_lie_on_huge_pages_where_the_kernel_gives_them() -> None:
    """What is written does, and no more is resident than that, rounded up; a small cache asks for none."""
    shape = LayerShape(8, 128, 128, torch.bfloat16)
    cache = PagedKVCache([shape], num_blocks=1024, block_size=16, device=torch.device("cpu"))
    before = psutil.Process().memory_info().rss
    cache.keys_SPKD[0][200:300] = 1
    assert psutil.Process().memory_info().rss - before < 100 * 16 * 8 * 128 * 2 + 3 * HUGE_PAGE
    enabled = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not enabled.is_file() or "[never]" in enabled.read_text():
        pytest.skip("this kernel gives none")
    assert "hg" in flags(cache.keys_SPKD[0][512].data_ptr())
    small = PagedKVCache([shape], num_blocks=2, block_size=16, device=torch.device("cpu"))
    small.keys_SPKD[0][:] = 1
    assert not small.values_SPKE[0].any()


def flags(address: int) -> list[str]:
    """What the kernel has been asked of the mapping around an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= address < int(found[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    return []
