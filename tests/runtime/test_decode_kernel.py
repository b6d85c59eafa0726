"""The decode kernel, in Triton's interpreter, which needs no GPU; `make gpu` runs it on one."""

import os
import subprocess
import sys

import pytest

from tests.test_layers import ROOT


@pytest.mark.long(rare=True, reason="Triton's interpreter takes minutes")
def test_the_decode_kernel_is_the_plain_formula() -> None:
    """Odd widths, groups of all sizes, windows, caps, sinks, one key and many, whole and in splits.

    In float32 and float16: in bf16 the interpreter multiplies bits instead of numbers.
    """
    pytest.importorskip("triton", reason="comes with torch's builds for GPUs: pip install triton")
    command = [sys.executable, "-m", "tests.runtime.interpreted_kernel"]
    ended = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
