"""Packed linear layers compute what plain ones do."""

import pytest
import torch
from torch import nn

from runtime.linear import pack_linears


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 9])
def test_packed_is_plain_within_rounding(rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 32, bias=bias)).bfloat16().requires_grad_(False)
    x = torch.randn(1, rows, 48, dtype=torch.bfloat16)
    plain = model(x)
    if pack_linears(model) == 0:
        pytest.skip("this CPU does not compute in bf16")
    torch.testing.assert_close(model(x), plain, rtol=2e-2, atol=2e-2)


def test_float32_is_left_alone() -> None:
    """It is the precision in which answers equal the library's token for token."""
    assert pack_linears(nn.Sequential(nn.Linear(8, 8))) == 0
