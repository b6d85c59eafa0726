"""Products of many rows: each row is bit-equal to the same row among few."""

import itertools
from ctypes import CDLL, byref

import pytest
import torch
from torch import Tensor, nn

from sundog.runtime.native.library import open_library
from sundog.runtime.native.linear import Packed
from sundog.runtime.native.records import FORMATS, Linear
from tests.runtime.variants import EACH_VARIANT, needs_kernels

pytestmark = needs_kernels
MOST_FEW = 14
CLOSE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@pytest.fixture(params=EACH_VARIANT)
def library(request: pytest.FixtureRequest) -> CDLL:
    return open_library(request.param)


def product(library: CDLL, record: Linear, x: Tensor, num_threads: int) -> Tensor:
    out = torch.full((len(x), record.num_out), torch.nan, dtype=x.dtype)
    library.sundog_linear(byref(record), x.data_ptr(), len(x), out.data_ptr(), FORMATS[x.dtype], num_threads)
    return out


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("num_rows", [64, 95, 96, 127, 767, 769])
@pytest.mark.parametrize(
    ("num_in", "num_out"), [(32, 64), (96, 200), (162, 48), (544, 130), (1536, 128), (1568, 64)]
)
def test_a_row_has_the_same_bits_among_many(
    library: CDLL, dtype: torch.dtype, num_rows: int, num_in: int, num_out: int
) -> None:
    """Whole and broken blocks of rows and columns, one and more parts of the inputs; with a bias."""
    torch.manual_seed(num_rows)
    layer = nn.Linear(num_in, num_out, dtype=dtype).requires_grad_(False)
    x = torch.randn(num_rows, num_in).to(dtype)
    packed = Packed(layer.weight, layer.bias, library)
    many = product(library, packed.record, x, 2)
    counts = itertools.cycle([*range(1, MOST_FEW + 1), *range(1, 4)])
    first = 0
    while first < num_rows:
        few_rows = x[first : first + next(counts)].contiguous()
        few = product(library, packed.record, few_rows, 1)
        assert torch.equal(many[first : first + len(few)], few)
        first += len(few)
    exact = layer.double()(x.double())
    torch.testing.assert_close(many.double(), exact, rtol=CLOSE[dtype], atol=CLOSE[dtype])
