"""The instruction sets that kernels are compiled for, as parameters of tests.

`SUNDOG_NATIVE` restricts them, as it restricts an engine: `make test-avx2` and `make test-without-kernels`.
"""

import os

import pytest

from sundog.runtime.native import build

_WANTED = os.environ.get("SUNDOG_NATIVE")
RUNNABLE = [name for name in build.variants_of(build.cpu_flags()) if _WANTED in (None, "", name)]
"""Those that this CPU can run, the best first."""
needs_kernels = pytest.mark.skipif(not RUNNABLE, reason="there are no compiled kernels here")
EACH_VARIANT = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(name not in RUNNABLE, reason=f"this CPU lacks {name}, or it is not wanted"),
    )
    for name in build.VARIANTS
]
"""Every one; those that cannot run here are skipped, and say so."""
