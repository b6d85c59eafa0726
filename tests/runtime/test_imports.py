"""Imports without looking for garbage: only while they last, however they end."""

import gc
import subprocess
import sys

import pytest

from runtime.imports import quick_imports


def test_garbage_is_looked_for_again_afterwards() -> None:
    with quick_imports():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_import_that_fails_leaves_the_collector_on() -> None:
    with pytest.raises(ModuleNotFoundError), quick_imports():
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with quick_imports():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


HIDDEN = """
from runtime.imports import quick_imports
with quick_imports():
    from runtime.backend import TorchBackend
import sys
assert not any(name.startswith("scipy") for name in sys.modules), "the library's losses found scipy"
from transformers.utils import is_scipy_available
import scipy.stats
assert is_scipy_available(), "a model that needs scipy would not find it"
"""


def test_losses_that_nobody_serves_do_not_bring_scipy() -> None:
    subprocess.run([sys.executable, "-c", HIDDEN], check=True, timeout=60)


def test_a_package_that_is_imported_already_stays() -> None:
    import scipy

    with quick_imports():
        assert sys.modules["scipy"] is scipy
    assert sys.modules["scipy"] is scipy
