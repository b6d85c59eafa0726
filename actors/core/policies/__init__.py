"""Scheduling policies: small frozen objects of pure functions, usable by name in every world."""

import difflib
import importlib.util
from pathlib import Path

from actors.core.config import ConfigError
from actors.core.policies.fcfs import Fcfs
from actors.core.policies.policy import Policy
from actors.core.policies.priority import Priority

__all__ = ["POLICIES", "Fcfs", "Policy", "Priority", "find_policy"]

POLICIES: dict[str, type[Policy]] = {"fcfs": Fcfs, "priority": Priority}
"""The policies that can be asked for by name."""


def find_policy(name: str) -> Policy:
    """The policy called `name`, or the class `NAME` of a file when given as `FILE.py:NAME`.

    Raises ConfigError that suggests the nearest name, or says what is wrong with the file.
    """
    file, colon, class_name = name.rpartition(":")
    if colon and file.endswith(".py"):
        return _load(Path(file), class_name)
    if name in POLICIES:
        return POLICIES[name]()
    near = difflib.get_close_matches(name, POLICIES, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise ConfigError(
        f"unknown policy {name!r}.{hint} Known: {', '.join(POLICIES)}, or FILE.py:NAME."
    )


def _load(file: Path, class_name: str) -> Policy:
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
    policy = found()
    for method in ("rank", "victim"):
        if not callable(getattr(policy, method, None)):
            raise ConfigError(f"policy {class_name} in {file} has no method {method}()")
    return policy  # type: ignore[no-any-return]
