"""The distilled tables of each GPU (`distil.py`), as arrays."""

from functools import cache
from importlib.resources import as_file, files
from typing import Any

import numpy as np

FOLDER = files("sim.cost.tables") / "data"


def has_tables(gpu: str) -> bool:
    """Whether there are tables of the GPU of this name (as `sim.hardware` calls its file)."""
    return (FOLDER / f"{gpu}.npz").is_file()


@cache
def load(gpu: str) -> dict[str, Any]:
    """The arrays of one GPU's file."""
    with as_file(FOLDER / f"{gpu}.npz") as path, np.load(path) as data:
        return {name: data[name] for name in data.files}
