"""The kernels access only their own memory, and have no undefined behaviour.

The kernels' own tests run once more in a Python of their own, on kernels that are compiled with checks of
every address and of undefined behaviour. GCC's checks end the process at the first fault, with its line.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from sundog.runtime.native import build
from tests.runtime.variants import needs_kernels
from tests.test_layers import ROOT

CHECKS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1"
PRELOADED = ("libasan.so", "libubsan.so", "libstdc++.so")
"""Python itself is not compiled with the checks, so their libraries come first, and the library whose
exceptions they watch."""
TESTS = tuple(
    f"test_{name}.py" for name in ("native", "native_panels", "native_decoder", "native_experts", "few_bits")
)

MOST_S = 1800
pytestmark = [
    pytest.mark.long(rare=True, reason="compiles the kernels again, with sanitizers"),
    needs_kernels,
]


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment in which the kernels are built with checks, in a cache of their own."""
    cache = tmp_path_factory.mktemp("checked")
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++: its libraries of checks are needed")
    if list(build.HERE.glob("*.so")):
        pytest.skip("an installation has brought the kernels: none would be compiled")
    libraries = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in PRELOADED
    ]
    missing = [path for path in libraries if not Path(path).is_file()]
    if missing:
        pytest.skip(f"this g++ comes without {', '.join(missing)}")
    return {
        **os.environ,
        "XDG_CACHE_HOME": str(cache),
        "CXX": f"{shlex.quote(compiler)} {CHECKS}",
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python frees little when it ends
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": str(ROOT),
    }


def run(environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=dict(environment),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=MOST_S,
    )


PAST_THE_END = """
import ctypes, torch
from sundog.runtime.native import build
from sundog.runtime.native.library import open_library
from sundog.runtime.native.linear import Packed
from tests.runtime.variants import needs_kernels
library = open_library(build.variants_of(build.cpu_flags())[0])
torch.manual_seed(0)
packed = Packed(torch.randn(64, 64).bfloat16(), None, library)
x = torch.randn(4, 64).bfloat16()
out = torch.empty(1, 64, dtype=torch.bfloat16)
library.sundog_linear(ctypes.byref(packed.record), x.data_ptr(), len(x), out.data_ptr(), 1, 1)
"""


def test_a_write_past_the_end_is_found(checked: dict[str, str]) -> None:
    """The checks are there: a product of four rows is written into the memory of one."""
    done = run(checked, "-c", PAST_THE_END)
    assert "heap-buffer-overflow" in done.stderr and "sundog_linear" in done.stderr, done.stderr[-2000:]


def test_the_kernels_keep_to_their_memory(checked: dict[str, str]) -> None:
    """Every variant that this CPU can run passes the kernels' own tests under the checks."""
    tests = [f"tests/runtime/{name}" for name in TESTS]
    done = run(checked, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *tests)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
