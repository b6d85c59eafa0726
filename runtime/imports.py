"""Importing torch and transformers quickly: without looking for garbage, or for what only training needs."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def quick_imports() -> Iterator[None]:
    """Python does not look for garbage inside, and transformers does not find scipy.

    It looks through all objects again as their number grows: a quarter of the import of transformers' models
    (4.3 s of CPU with, 3.3 without), which leaves 12,000 objects of garbage beside 400,000 that stay.

    Every model of the library imports its losses, and those of object detection import scipy, if it is there:
    a sixth of the rest (2.0 s of CPU with, 1.7 without). Afterwards it is there for whoever imports it.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with _without("scipy"):
            yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _without(package: str) -> Iterator[None]:
    """An optional package that is not imported yet is as one that is not installed."""
    if package in sys.modules:
        yield
        return
    absent: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]  # None is "not to be found"
    absent[package] = None
    try:
        yield
    finally:
        del sys.modules[package]
        _forget_what_is_installed()


def _forget_what_is_installed() -> None:
    """Have transformers look again, for a model that does need the package."""
    if (library := sys.modules.get("transformers.utils.import_utils")) is not None:
        library.is_scipy_available.cache_clear()
