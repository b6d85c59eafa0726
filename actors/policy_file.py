"""Loading of policies, routers and predictors, by name or as a class in a user's file.

A file is executed once, and its class is checked before anything starts: an unknown method, a superfluous
argument or a call of a clock is an error that names it. User classes are wrapped in a guard.
"""

import ast
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

from sundog.actors.core.config import ConfigError
from sundog.actors.core.names import did_you_mean, unknown
from sundog.actors.core.policies import POLICIES, Policy
from sundog.actors.core.policies.guard import GuardedPolicy
from sundog.actors.core.predictors import GuardedPredictor, LengthPredictor
from sundog.actors.core.records import dataclass
from sundog.actors.core.routers import ROUTERS, RouterPolicy
from sundog.actors.core.routers.guard import GuardedRouter
from sundog.actors.core.routers.policy import INDEXES
from sundog.actors.core.scalers import SCALERS, GuardedScaler, Scaler, check_behaviour
from sundog.actors.policy_arguments import arguments_of, constructed

IN_FILE = re.compile(r"(.+\.py):(\w+)(?::(.*))?", re.DOTALL)
MODULE = "sundog_file"
"""Package name of modules made from users' files."""
CHANCE = (
    "random",
    "secrets",
    "time",
    "datetime",
    "uuid",
    "numpy.random",
    "np.random",
    "os.urandom",
    "os.getrandom",
)
"""Names of modules and functions whose results differ from run to run."""
TASKS = ("threading", "multiprocessing", "concurrent", "subprocess", "socket", "asyncio", "trio")

P = TypeVar("P", Policy, RouterPolicy, LengthPredictor, Scaler)


@dataclass(frozen=True, slots=True)
class PolicyKind(Generic[P]):
    """Kind of a user's class (policy, router, predictor or scaler): the built-in ones, and requirements on a
    class.
    """

    word: str
    public: str
    """Public name of its base class."""
    known: Mapping[str, Callable[..., P]]
    base: type[P]
    guard: Callable[[P, str], P]
    shown: str
    """Argument that carries facts and memory."""


POLICY = PolicyKind("policy", "sundog.Policy", POLICIES, base=Policy, guard=GuardedPolicy, shown="view")
ROUTER = PolicyKind("router", "sundog.Router", ROUTERS, base=RouterPolicy, guard=GuardedRouter, shown="fleet")
PREDICTOR = PolicyKind(
    "predictor", "sundog.Predictor", {}, base=LengthPredictor, guard=GuardedPredictor, shown="request"
)
SCALER = PolicyKind("scaler", "sundog.Scaler", SCALERS, base=Scaler, guard=GuardedScaler, shown="fleet")


def find_policy(text: str) -> Policy:
    """Return the policy `NAME`, or the class `NAME` of a user's file: `FILE.py:NAME`.

    Either may be followed by parameters: `vtc:output_weight=4,input_weight=1`. Raises ConfigError that
    suggests the nearest name, or names the fault in the file, its class or a parameter.
    """
    return _found(POLICY, text)


@dataclass(frozen=True, slots=True)
class PolicyRecipe:
    """Parts of a policy's text: `name` is a built-in policy, or a class in `file`."""

    file: Path | None
    name: str
    arguments: Mapping[str, object]


def policy_recipe(text: str) -> PolicyRecipe:
    """Parse the text that `find_policy` takes."""
    in_file = IN_FILE.fullmatch(text)
    if in_file is None:
        name, _, arguments = text.partition(":")
        return PolicyRecipe(None, name, arguments_of(f"policy {name}", POLICIES[name], arguments))
    file, name, arguments = in_file.groups()
    cls = _class(POLICY, Path(file), name)
    return PolicyRecipe(Path(file), name, arguments_of(f"policy {file}:{name}", cls, arguments or ""))


def find_router(text: str) -> RouterPolicy:
    """Return the router policy `NAME` or `FILE.py:NAME`, as `find_policy` does."""
    return _found(ROUTER, text)


def find_own_predictor(text: str) -> LengthPredictor:
    """Return the length predictor `FILE.py:NAME`, as `find_policy` does."""
    return _found(PREDICTOR, text)


def find_scaler(text: str) -> Scaler:
    """Return the scaler `NAME` or `FILE.py:NAME`, as `find_policy` does."""
    return _found(SCALER, text)


def given_policy(policy: object) -> Policy:
    """Return the policy given as an object or class; raises ConfigError as for a file's class."""
    return _given(POLICY, policy)


def given_router(router: object) -> RouterPolicy:
    """Return the router policy given as an object or class, as `given_policy` does."""
    return _given(ROUTER, router)


def _given(kind: PolicyKind[P], value: object) -> P:
    name = value.__name__ if isinstance(value, type) else type(value).__name__
    what = f"{kind.word} {name}"
    made = constructed(what, value, "") if isinstance(value, type) else value
    if not isinstance(made, kind.base):
        raise ConfigError(f"{what} is not a {kind.word}: inherit from {kind.public}")
    _check(kind, made, what)
    return kind.guard(made, name)


def _found(kind: PolicyKind[P], text: str) -> P:
    in_file = IN_FILE.fullmatch(text)
    if in_file is not None:
        file, class_name, arguments = in_file.groups()
        return _from_file(kind, Path(file), class_name, arguments or "")
    name, _, arguments = text.partition(":")
    if name in kind.known:
        return constructed(f"{kind.word} {name}", kind.known[name], arguments)
    if name.endswith(".py"):
        raise ConfigError(f"{kind.word} {text!r} names no class: {name}:CLASS")
    raise unknown(kind.word, name, kind.known, also=", or FILE.py:NAME")


def _from_file(kind: PolicyKind[P], file: Path, class_name: str, arguments: str) -> P:
    name = f"{file}:{class_name}"
    policy = constructed(f"{kind.word} {name}", _class(kind, file, class_name), arguments)
    _check(kind, policy, f"{kind.word} {name}")
    return kind.guard(policy, name)


def _class(kind: PolicyKind[P], file: Path, class_name: str) -> type[P]:
    module = _load(kind, file)
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        others = [
            n for n, v in vars(module).items() if isinstance(v, type) and v.__module__ == module.__name__
        ]
        hint = did_you_mean(class_name, others) or f" Its classes: {', '.join(others) or 'none'}."
        raise ConfigError(f"{kind.word} file {file} has no class {class_name}.{hint}")
    if kind.base not in found.__mro__ or found is kind.base:
        raise ConfigError(
            f"class {class_name} in {file} is not a {kind.word}: let it inherit from {kind.public}"
        )
    return found


def _load(kind: PolicyKind[P], file: Path) -> ModuleType:
    try:
        source = file.read_text(encoding="utf-8")
        tree = ast.parse(source, str(file))
    except OSError as error:
        raise ConfigError(f"{kind.word} file {file} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{kind.word} file {file}, line {line}, is not UTF-8: save it as UTF-8") from None
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ConfigError(f"{kind.word} file {file} cannot be loaded: {_one_line(error)}") from None
    for node in ast.walk(tree):
        reason = _refused(kind, node)
        if reason is not None:
            line = getattr(node, "lineno", 0)
            raise ConfigError(f"{kind.word} file {file}, line {line}, {reason}")
    name = f"{MODULE}.{kind.word}.{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # a user's file may raise anything
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == spec.origin]
        where = f" (line {lines[-1]})" if lines else ""
        raise ConfigError(f"{kind.word} file {file} cannot be loaded: {_one_line(error)}{where}") from error
    return module


def _refused(kind: PolicyKind[P], node: ast.AST) -> str | None:
    """Return why a file with this import cannot be used, or None."""
    match node:
        case ast.Import():
            names = [alias.name for alias in node.names]
        case ast.ImportFrom(level=0):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        case ast.ImportFrom():
            wanted = "." * node.level + (node.module or "")
            return (
                f"imports from {wanted}: a {kind.word} is one file and belongs to no package; write what it"
                " needs into the file"
            )
        case ast.Attribute(value=ast.Name(id=("np" | "numpy" | "os") as module), attr=attr):
            names = [f"{module}.{attr}"]
        case ast.Call(func=ast.Name(id=("id" | "hash") as function)):
            return f"uses {function}(), which differs from process to process: a run must repeat"
        case _:
            return None
    for name in names:
        if _is_in(name, CHANCE):
            shown = kind.shown
            return f"uses {name}: a run must repeat: take {shown}.random(request, ...) and {shown}.now_s"
        if _is_in(name, ("actors.core",)):
            base = kind.public.partition(".")[2]
            return f"imports {name}, which has moved to sundog.{name}: write `from sundog import {base}`"
        if _is_in(name, TASKS):
            return f"uses {name}: it must return at once, and use only its arguments"
    return None


def _is_in(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


# --- the class ------------------------------------------------------------------------------------


def _check(kind: PolicyKind[P], found: P, what: str) -> None:
    members = {name: value for name, value in vars(kind.base).items() if not name.startswith("_")}
    for cls in type(found).__mro__[: type(found).__mro__.index(kind.base)]:
        for own in vars(cls):
            hint = "" if own.startswith("_") or own in members else did_you_mean(own, members, cutoff=0.75)
            if hint:
                raise ConfigError(f"{what}: a {kind.word} has no {own}.{hint}")
    for name, default in members.items():
        if inspect.isfunction(default):
            _check_signature(found, what, name, tuple(inspect.signature(default).parameters)[1:])
        elif isinstance(default, bool) and not isinstance(value := getattr(found, name), bool):
            raise ConfigError(f"{what}: {name} is {value!r}: it must be True or False")
    _check_values(found, what)
    if isinstance(found, Policy | RouterPolicy):
        try:
            found.new_memory()
        except BaseException as error:
            raise ConfigError(f"{what}: new_memory raised {error!r}") from error


def _check_values(found: object, what: str) -> None:
    if isinstance(found, Policy):
        _check_weights(found.token_weights, what)
    elif isinstance(found, RouterPolicy) and found.index not in INDEXES:
        raise ConfigError(f"{what}: index is {found.index!r}: known are {', '.join(INDEXES)}")
    elif isinstance(found, Scaler):
        try:
            check_behaviour(found)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{what}: {error}") from None


def _check_signature(found: object, what: str, method: str, arguments: tuple[str, ...]) -> None:
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


def _check_weights(weights: object, what: str) -> None:
    if weights is None:
        return
    if callable(weights):
        raise ConfigError(f"{what}: token_weights is a method: make it a property")
    if (
        not isinstance(weights, tuple)
        or len(weights) != 2
        or not all(isinstance(w, int | float) and 0 <= w < float("inf") for w in weights)
    ):
        raise ConfigError(
            f"{what}: token_weights is {weights!r}: it must be two numbers, of prompt and output"
        )
