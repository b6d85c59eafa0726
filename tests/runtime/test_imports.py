"""Garbage collection is off during imports, and on again however they end."""

import gc

import pytest

from sundog.runtime.host.imports import quick_imports


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
