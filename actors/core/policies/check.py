"""Check, once when it is loaded, that a class is a policy and that no name in it is misspelt."""

import inspect

from actors.core.config import ConfigError
from actors.core.names import did_you_mean
from actors.core.policies.policy import Policy

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


def check_policy(policy: Policy, name: str) -> None:
    """Raise ConfigError for what would be ignored, or would fail at its first call."""
    _check_names(policy, name)
    for method, arguments in METHODS.items():
        _check_signature(policy, name, method, arguments)
    for claim in CLAIMS:
        value = getattr(policy, claim)
        if not isinstance(value, bool):
            raise ConfigError(f"policy {name}: {claim} is {value!r}: it must be True or False")
    _check_weights(policy, name)
    _check_memory(policy, name)
    try:
        policy.new_memory()
    except Exception as error:
        raise ConfigError(f"policy {name}: new_memory raised {error!r}") from error


def _check_names(policy: Policy, name: str) -> None:
    """Refuse names that are almost ours: such a name was meant to be ours; others are the author's own."""
    for cls in type(policy).__mro__:
        if cls.__module__.startswith("actors.core.policies."):
            break
        for own in vars(cls):
            hint = "" if own.startswith("_") or own in KNOWN else did_you_mean(own, KNOWN, cutoff=0.75)
            if hint:
                raise ConfigError(f"policy {name}: {own} is nothing a policy is asked.{hint}")


def _check_signature(policy: Policy, name: str, method: str, arguments: tuple[str, ...]) -> None:
    function = getattr(policy, method)
    wanted = f"{method}({', '.join(('self', *arguments))})"
    if not callable(function):
        raise ConfigError(f"policy {name}: {method} is {function!r}: it must be a method {wanted}")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise ConfigError(f"policy {name}: {method} waits or yields: let it return its answer")
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        given = f"{method}{inspect.signature(function)}".replace("(", "(self, ", 1).replace(", )", ")")
        raise ConfigError(f"policy {name}: {given} cannot be called as {wanted}") from None


def _check_weights(policy: Policy, name: str) -> None:
    weights = policy.token_weights
    if weights is None:
        return
    if callable(weights):
        raise ConfigError(f"policy {name}: token_weights is a method: make it a property")
    is_pair = isinstance(weights, tuple) and len(weights) == 2
    if not is_pair or not all(isinstance(w, int | float) and 0 <= w < float("inf") for w in weights):
        raise ConfigError(
            f"policy {name}: token_weights is {weights!r}: it must be two numbers, of prompt and output"
        )


def _check_memory(policy: Policy, name: str) -> None:
    """Refuse fields that can change: what changes between two calls is kept by the scheduler."""
    for field, value in getattr(policy, "__dict__", {}).items():
        if isinstance(value, list | dict | set | bytearray):
            raise ConfigError(
                f"policy {name}: {field} is a {type(value).__name__}, which could change: use a tuple, or"
                " new_memory() and view.memory"
            )


def freeze(policy: Policy) -> Policy:
    """The same object, frozen: it refuses what a method would write on it."""
    cls = type(policy)

    def refuse(self: Policy, name: str, value: object) -> None:
        raise AttributeError(f"{cls.__name__} sets self.{name}: a policy remembers in view.memory")

    named = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    frozen = type(cls.__name__, (cls,), named | {"__slots__": (), "__setattr__": refuse})
    object.__setattr__(policy, "__class__", frozen)
    return policy
