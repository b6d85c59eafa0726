"""Scheduling policies: small frozen objects of pure functions, usable by name in every world."""

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

from actors.core.config import ConfigError
from actors.core.names import unknown
from actors.core.policies.earliest_deadline import EarliestDeadline
from actors.core.policies.fcfs import Fcfs
from actors.core.policies.longest_prefix import LongestPrefixMatch
from actors.core.policies.mlfq import Mlfq
from actors.core.policies.policy import Policy, has_urgency
from actors.core.policies.prefill_first import PrefillFirst
from actors.core.policies.priority import Priority
from actors.core.policies.shortest_prompt import ShortestPrompt
from actors.core.policies.shortest_remaining import ShortestRemaining
from actors.core.policies.vtc import VirtualTokenCounter
from actors.core.request import Request
from actors.core.view import View

__all__ = ["POLICIES", "Fcfs", "Policy", "Priority", "Request", "View", "find_policy", "has_urgency"]

POLICIES: dict[str, Callable[..., Policy]] = {
    "fcfs": Fcfs,
    "priority": Priority,
    "shortest-prompt": ShortestPrompt,
    "shortest-remaining": ShortestRemaining,
    "longest-prefix": LongestPrefixMatch,
    "earliest-deadline": EarliestDeadline,
    "vtc": VirtualTokenCounter,
    "mlfq": Mlfq,
    "prefill-first": PrefillFirst,
    "decode-first": Fcfs,
}
"""The policies that can be asked for by name; `decode-first` is what `fcfs` does."""


def find_policy(text: str) -> Policy:
    """The policy called `NAME`, or class `NAME` of a user's file: `FILE.py:NAME`.

    Either may be followed by numbers to construct it with: `vtc:output_weight=4,input_weight=1`.
    Raises ConfigError that suggests the nearest name, or says what is wrong with the file.
    """
    in_file = re.fullmatch(r"(.+\.py):(\w+)(?::(.*))?", text)
    if in_file is not None:
        file, class_name, arguments = in_file.groups()
        return _construct(text, _load(Path(file), class_name), arguments or "")
    name, _, arguments = text.partition(":")
    if name in POLICIES:
        return _construct(text, POLICIES[name], arguments)
    raise unknown("policy", name, POLICIES, also=", or FILE.py:NAME")


def _construct(text: str, make: Callable[..., Policy], arguments: str) -> Policy:
    values: dict[str, float] = {}
    for argument in filter(None, arguments.split(",")):
        key, _, value = argument.partition("=")
        try:
            values[key] = int(value) if re.fullmatch(r"-?\d+", value) else float(value)
        except ValueError:
            raise ConfigError(f"policy {text}: {argument!r} is not key=number") from None
    try:
        return make(**values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"policy {text}: {error}") from error


def _load(file: Path, class_name: str) -> type[Policy]:
    if not file.is_file():
        raise ConfigError(f"policy file {file} does not exist")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"policy file {file} cannot be loaded: {error!r}") from error
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        raise ConfigError(f"policy file {file} has no class {class_name}")
    if Policy not in found.__mro__:
        raise ConfigError(
            f"class {class_name} in {file} is not a policy: let it inherit from actors.core.policies.Policy"
        )
    return found
