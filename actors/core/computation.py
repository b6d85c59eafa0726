"""The way in which an engine computes its steps, for people to read."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Computation:
    """The way in which a backend computes a step, in words; `why_not_whole` if not by one compiled call.

    `instructions` are the processor's that multiply; `faster` names an option with which answers come sooner.
    """

    dtype: str
    attention: str
    steps: str
    why_not_whole: str | None = None
    instructions: str | None = None
    faster: str | None = None
