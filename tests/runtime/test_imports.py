"""Imports without looking for garbage: only while they last, however they end."""

import gc

import pytest

from runtime.imports import without_collecting


def test_garbage_is_looked_for_again_afterwards() -> None:
    with without_collecting():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_import_that_fails_leaves_the_collector_on() -> None:
    with pytest.raises(ModuleNotFoundError), without_collecting():
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with without_collecting():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
