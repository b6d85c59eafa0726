"""First come, first served: vLLM's default policy, decode-first."""

from typing import ClassVar

from actors.core.queue.policy import Policy
from actors.core.records import dataclass


@dataclass(frozen=True)
class Fcfs(Policy):
    """In order of arrival; the most recently admitted is preempted, and then goes first again.

    Running requests, decodes among them, take their tokens before any is admitted: the order
    of Sarathi-Serve (Agrawal et al., OSDI 2024, section 4.2), which keeps decodes from stalling.
    """

    returns_to_front: ClassVar[bool] = True
