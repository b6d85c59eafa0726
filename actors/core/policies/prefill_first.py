"""Prefills before decodes: the order of the first serving engines."""

from typing import ClassVar

from actors.core.queue.policy import Policy
from actors.core.records import dataclass


@dataclass(frozen=True)
class PrefillFirst(Policy):
    """First come, first served, but prefills take the token budget and decodes what they leave.

    The prefill-prioritising schedule of Orca and early vLLM, as Sarathi-Serve (Agrawal et al.,
    OSDI 2024, section 3) describes it: first tokens come sooner, running answers stall meanwhile.
    No request is admitted into blocks that a running request needs in the same step.
    """

    returns_to_front: ClassVar[bool] = True
    prefills_first: ClassVar[bool] = True
