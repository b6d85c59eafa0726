"""Step times from measured kernels (`model.py`), distilled from a published package."""

from sim.cost.tables.model import TablesCost
from sim.cost.tables.store import has_tables

__all__ = ["TablesCost", "has_tables"]
