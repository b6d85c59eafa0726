"""Table of fates: what happens when a part fails. docs/fates.md argues each row.

A graph is started with one column of the table. In every column a request that fails ends alone, with an
error; a tap that fails is dropped with a warning; a failure of the front, of which there is one, ends the
run.
"""

import enum

from sundog.actors.core.records import dataclass


class Fate(enum.Enum):
    """Consequence of a part's failure for the part and the run."""

    ENDS_RUN = "ends the run"
    ENDS_ALONE = "ends alone, with a warning"
    REPLACED = "is replaced"
    RESTARTED = "is restarted"


@dataclass(frozen=True, slots=True)
class Fates:
    """Column of the table of fates."""

    listener: Fate
    """Journal or recorder: an actor that receives every output and answers nothing."""
    policy: Fate
    """Policy of an engine's scheduler; fcfs replaces it."""
    engine: Fate
    """Engine core: Scheduler, KVCacheManager, Executor, or a Runner with its backend."""


SIMULATED = Fates(listener=Fate.ENDS_RUN, policy=Fate.ENDS_RUN, engine=Fate.ENDS_RUN)
"""Fates in simulation: a result that lacks a part is wrong, and no client waits, so the run stops."""

SERVED = Fates(listener=Fate.ENDS_ALONE, policy=Fate.REPLACED, engine=Fate.RESTARTED)
"""Fates on a server: as clients wait, all unaffected parts continue."""
