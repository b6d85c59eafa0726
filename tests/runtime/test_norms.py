"""Norms in one call, used where they equal the library's result."""

from pathlib import Path

import pytest
import torch

from sundog.runtime.model.norms import FusedNorm, fuse_norms
from tests.runtime.models import build_model


@pytest.mark.parametrize(
    ("architecture", "num_norms"), [("llama", 7), ("qwen3", 13), ("gemma2", 0), ("gpt2", 0)]
)
def test_norms_are_replaced_where_the_answer_is_the_librarys(
    architecture: str, num_norms: int, tmp_path: Path
) -> None:
    """Gemma's weights count from 1, and GPT-2's norms subtract the mean: both are left alone."""
    torch.set_num_threads(1)
    model = build_model(architecture, tmp_path)
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.data.uniform_(0.5, 1.5)
    ids = torch.arange(3, 12)[None]
    with torch.no_grad():
        expected = model(ids).logits
        assert fuse_norms(model) == num_norms
        assert sum(isinstance(module, FusedNorm) for module in model.modules()) == num_norms
        torch.testing.assert_close(model(ids).logits, expected, rtol=1e-4, atol=1e-4)
