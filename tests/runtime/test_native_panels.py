"""Products of many rows: each row's bits are those it has among a few."""

from ctypes import CDLL, byref

import pytest
import torch
from torch import Tensor, nn

from runtime.native import build
from runtime.native.library import open_library
from runtime.native.linear import PackedLinear
from runtime.native.parts import Parts
from runtime.native.records import Linear

RUNNABLE = build.variants_of(build.cpu_flags())
pytestmark = pytest.mark.skipif(not RUNNABLE, reason="this CPU runs none of the kernels")
FEW = 13


@pytest.fixture(params=RUNNABLE)
def library(request: pytest.FixtureRequest) -> CDLL:
    return open_library(request.param)


def product(library: CDLL, record: Linear, x: Tensor, num_threads: int) -> Tensor:
    out = torch.full((len(x), record.num_out), torch.nan, dtype=x.dtype)
    library.sundog_linear(byref(record), x.data_ptr(), len(x), out.data_ptr(), num_threads)
    return out


@pytest.mark.parametrize("num_rows", [64, 95, 96, 127, 767, 769])
@pytest.mark.parametrize(("num_in", "num_out"), [(32, 64), (96, 200), (544, 130), (1536, 128), (1568, 64)])
def test_a_row_has_the_same_bits_among_many(library: CDLL, num_rows: int, num_in: int, num_out: int) -> None:
    """Whole and broken blocks of rows and columns, one and more parts of the inputs; with a bias."""
    torch.manual_seed(num_rows)
    layer = nn.Linear(num_in, num_out, dtype=torch.bfloat16).requires_grad_(False)
    x = torch.randn(num_rows, num_in).bfloat16()
    packed = PackedLinear(layer)
    if packed.packed.block is None:
        pytest.skip("oneDNN packs in an order of its own")
    parts = Parts(torch.bfloat16)
    record = parts.linear(packed, num_in, num_out)
    many = product(library, record, x, 2)
    for first in range(0, num_rows, FEW):
        few = product(library, record, x[first : first + FEW].contiguous(), 1)
        assert torch.equal(many[first : first + FEW], few)
    torch.testing.assert_close(many.float(), layer.float()(x.float()), rtol=1e-2, atol=1e-2)
