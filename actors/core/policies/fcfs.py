"""First come, first served: vLLM's default policy."""

from dataclasses import dataclass

from actors.core.policies.policy import Policy


@dataclass(frozen=True)
class Fcfs(Policy):
    """In order of arrival; the most recently admitted is preempted, and goes first again."""

    returns_to_front: bool = True
