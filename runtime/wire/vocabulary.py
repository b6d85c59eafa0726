"""The messages of the graph that may cross between processes, in the order of their tags."""

from actors.messages import (
    Abort,
    Batch,
    Capacity,
    Done,
    Freeze,
    Interrupt,
    Load,
    PolicyFailed,
    Refused,
    ResetPrefixCache,
    StepOutput,
    StepResult,
    Submit,
)

MESSAGES: tuple[type, ...] = (
    Submit,
    Abort,
    ResetPrefixCache,
    Done,
    Refused,
    StepOutput,
    PolicyFailed,
    Batch,
    StepResult,
    Interrupt,
    Load,
    Capacity,
    Freeze,
)
