"""Check, once when it is loaded, that a class is a policy and that no name in it is misspelt."""

import inspect
from collections.abc import Callable, Collection
from typing import TypeVar

from actors.core.config import ConfigError
from actors.core.names import did_you_mean
from actors.core.queue.policy import Policy

T = TypeVar("T")

METHODS: dict[str, tuple[str, ...]] = {
    "rank": ("request", "view"),
    "rank_key": ("request", "view"),
    "urgency": ("request", "view"),
    "victim": ("running", "view"),
    "quota": ("request", "view"),
    "refuse": ("request", "view"),
    "new_memory": (),
    "admitted": ("request", "view"),
    "finished": ("request", "view"),
}
"""What a policy may define, and what each is called with."""
CLAIMS = ("returns_to_front", "is_dynamic", "prefills_first")
KNOWN = (*METHODS, *CLAIMS, "token_weights")


def check_policy(policy: Policy, what: str) -> None:
    """Raise ConfigError for what would be ignored, or would fail at its first call."""
    check_names(policy, what, KNOWN, "actors.core.policies.")
    for method, arguments in METHODS.items():
        check_signature(policy, what, method, arguments)
    for claim in CLAIMS:
        check_claim(policy, what, claim)
    _check_weights(policy, what)
    check_memory(policy, what, policy.new_memory, "view")


def check_names(found: object, what: str, known: Collection[str], ours: str) -> None:
    """Refuse names that are almost ours: such a name was meant to be ours; others are the author's own."""
    for cls in type(found).__mro__:
        if cls.__module__.startswith(ours):
            break
        for own in vars(cls):
            hint = "" if own.startswith("_") or own in known else did_you_mean(own, known, cutoff=0.75)
            if hint:
                raise ConfigError(f"{what}: {own} is nothing a {what.split()[0]} is asked.{hint}")


def check_claim(found: object, what: str, claim: str) -> None:
    """Refuse a claim that is no truth value."""
    value = getattr(found, claim)
    if not isinstance(value, bool):
        raise ConfigError(f"{what}: {claim} is {value!r}: it must be True or False")


def check_signature(found: object, what: str, method: str, arguments: tuple[str, ...]) -> None:
    """Refuse what cannot be called as it will be."""
    function = getattr(found, method)
    wanted = f"{method}({', '.join(('self', *arguments))})"
    if not callable(function):
        raise ConfigError(f"{what}: {method} is {function!r}: it must be a method {wanted}")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise ConfigError(f"{what}: {method} waits or yields: let it return its answer")
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        given = f"{method}{inspect.signature(function)}".replace("(", "(self, ", 1).replace(", )", ")")
        raise ConfigError(f"{what}: {given} cannot be called as {wanted}") from None


def _check_weights(policy: Policy, what: str) -> None:
    weights = policy.token_weights
    if weights is None:
        return
    if callable(weights):
        raise ConfigError(f"{what}: token_weights is a method: make it a property")
    is_pair = isinstance(weights, tuple) and len(weights) == 2
    if not is_pair or not all(isinstance(w, int | float) and 0 <= w < float("inf") for w in weights):
        raise ConfigError(
            f"{what}: token_weights is {weights!r}: it must be two numbers, of prompt and output"
        )


def check_memory(found: object, what: str, new_memory: Callable[[], object], where: str) -> None:
    """Refuse fields that can change, and a memory that cannot be made: what changes is kept for it."""
    for field, value in getattr(found, "__dict__", {}).items():
        if isinstance(value, list | dict | set | bytearray):
            raise ConfigError(
                f"{what}: {field} is a {type(value).__name__}, which could change: use a tuple, or"
                f" new_memory() and {where}.memory"
            )
    try:
        new_memory()
    except BaseException as error:
        raise ConfigError(f"{what}: new_memory raised {error!r}") from error


def freeze(found: T, remembers: str = "a policy remembers in view.memory") -> T:
    """The same object, frozen: it refuses what a method would write on it."""
    cls = type(found)

    def refuse(self: object, name: str, value: object) -> None:
        raise AttributeError(f"{cls.__name__} sets self.{name}: {remembers}")

    named = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    frozen = type(cls.__name__, (cls,), named | {"__slots__": (), "__setattr__": refuse})
    object.__setattr__(found, "__class__", frozen)
    return found
