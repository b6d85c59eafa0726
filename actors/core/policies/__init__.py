"""Scheduling policies: small frozen objects of pure functions, usable by name in every world."""

from actors.core.policies.fcfs import Fcfs
from actors.core.policies.policy import Policy
from actors.core.policies.priority import Priority

__all__ = ["POLICIES", "Fcfs", "Policy", "Priority"]

POLICIES: dict[str, type[Policy]] = {"fcfs": Fcfs, "priority": Priority}
"""The policies that can be asked for by name."""
