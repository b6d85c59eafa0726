"""The table of fates: what becomes of a part that fails. `docs/fates.md` argues each row.

A graph is opened with one column of the table. Whatever the column: a request that fails ends
alone, with an error; a tap that fails is dropped with a warning; and the front, of which there is
one, ends the run.
"""

import enum
from dataclasses import dataclass


class Fate(enum.Enum):
    """The fate of a part that failed, and with it of the run."""

    ENDS_RUN = "ends the run"
    ENDS_ALONE = "ends alone, with a warning"
    REPLACED = "is replaced"
    RESTARTED = "is restarted"


@dataclass(frozen=True, slots=True)
class Fates:
    """A column of the table of fates."""

    listener: Fate
    """A journal or recorder: an actor that hears what the graph does and is asked for nothing."""
    policy: Fate
    """A policy of an engine's scheduler; fcfs takes its place."""
    engine: Fate
    """An engine core: Scheduler, KVCacheManager, Executor or a Runner with its backend."""


SIMULATED = Fates(listener=Fate.ENDS_RUN, policy=Fate.ENDS_RUN, engine=Fate.ENDS_RUN)
"""A result that lacks a part is wrong, and no client waits for an answer: stop, and say why."""

SERVED = Fates(listener=Fate.ENDS_ALONE, policy=Fate.REPLACED, engine=Fate.RESTARTED)
"""Clients wait: every part that can go on goes on."""
