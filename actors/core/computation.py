"""Description of how an engine computes its steps, for people."""

from sundog.actors.core.records import dataclass


@dataclass(frozen=True, slots=True)
class Computation:
    """How a backend computes a step, in words; `why_not_whole` is set if a step is not one compiled call.

    `instructions` are the processor's multiply instructions in use; `faster` names an option that would speed
    up answers.
    """

    dtype: str
    attention: str
    steps: str
    why_not_whole: str | None = None
    instructions: str | None = None
    faster: str | None = None
