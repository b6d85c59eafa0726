"""Policies, routers and predictors as they are asked for: by name, or as a class in a user's file.

A file is read and run here, once, and what it holds is checked before anything starts: a misspelt method, an
argument too many or a clock of its own is an error that names it. Then it is guarded, because it is not ours.
"""

import ast
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

from sundog.actors.core.config import ConfigError
from sundog.actors.core.names import did_you_mean, unknown
from sundog.actors.core.policies import POLICIES, Policy
from sundog.actors.core.policies.guard import GuardedPolicy
from sundog.actors.core.predictors import GuardedPredictor, LengthPredictor
from sundog.actors.core.routers import ROUTERS, RouterPolicy
from sundog.actors.core.routers.guard import GuardedRouter
from sundog.actors.core.routers.policy import INDEXES
from sundog.actors.core.scalers import SCALERS, GuardedScaler, Scaler, check_behaviour
from sundog.actors.policy_arguments import arguments_of, constructed

IN_FILE = re.compile(r"(.+\.py):(\w+)(?::(.*))?", re.DOTALL)
MODULE = "sundog_file"
"""The package, in name only, of modules that are made of users' files."""
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
"""The names of what answers differently from run to run."""
TASKS = ("threading", "multiprocessing", "concurrent", "subprocess", "socket", "asyncio", "trio")

P = TypeVar("P", Policy, RouterPolicy, LengthPredictor, Scaler)


@dataclass(frozen=True, slots=True)
class PolicyKind(Generic[P]):
    """A policy, a router or a predictor: the known ones, and what a user's class must be."""

    word: str
    public: str
    """The public name of its base class."""
    known: Mapping[str, Callable[..., P]]
    base: type[P]
    guard: Callable[[P, str], P]
    shown: str
    """The argument that facts and memory are read from."""
    methods: Mapping[str, tuple[str, ...]]
    """The methods that it may define, and what each is called with."""
    claims: tuple[str, ...]
    """Attributes that are True or False."""
    others: tuple[str, ...]


ABOUT = ("request", "view")
POLICY = PolicyKind(
    "policy",
    "sundog.Policy",
    known=POLICIES,
    base=Policy,
    guard=GuardedPolicy,
    shown="view",
    methods={
        "rank": ABOUT,
        "rank_key": ABOUT,
        "urgency": ABOUT,
        "victim": ("running", "view"),
        "quota": ABOUT,
        "refuse": ABOUT,
        "new_memory": (),
        "admitted": ABOUT,
        "sampled": ABOUT,
        "finished": ABOUT,
    },
    claims=("returns_to_front", "is_dynamic", "prefills_first", "pauses"),
    others=("token_weights",),
)
ROUTER = PolicyKind(
    "router",
    "sundog.Router",
    known=ROUTERS,
    base=RouterPolicy,
    guard=GuardedRouter,
    shown="fleet",
    methods={
        "score": ("request", "replica", "fleet"),
        "choose": ("request", "fleet"),
        "refuse": ("request", "fleet"),
        "moves": ("fleet",),
        "new_memory": (),
    },
    claims=("follows_steps",),
    others=("index", "moves_every_s", "stale_s"),
)
PREDICTOR = PolicyKind(
    "predictor",
    "sundog.Predictor",
    known={},
    base=LengthPredictor,
    guard=GuardedPredictor,
    shown="request",
    methods={"predict": ("request",)},
    claims=(),
    others=(),
)

SCALER = PolicyKind(
    "scaler",
    "sundog.Scaler",
    known=SCALERS,
    base=Scaler,
    guard=GuardedScaler,
    shown="fleet",
    methods={"want": ("fleet",)},
    claims=(),
    others=tuple(f"{way}_{what}" for way in ("up", "down") for what in ("s", "pods", "percent", "period_s")),
)


def find_policy(text: str) -> Policy:
    """The policy called `NAME`, or class `NAME` of a user's file: `FILE.py:NAME`.

    Either may be followed by parameters: `vtc:output_weight=4,input_weight=1`. Raises ConfigError
    that suggests the nearest name, or says what is wrong with the file, its class or a parameter.
    """
    return _found(POLICY, text)


@dataclass(frozen=True, slots=True)
class PolicyRecipe:
    """The parts from which `find_policy` makes a policy: `name` is a known one, or a class in `file`."""

    file: Path | None
    name: str
    arguments: Mapping[str, object]


def policy_recipe(text: str) -> PolicyRecipe:
    """The recipe of a policy that `find_policy` takes."""
    in_file = IN_FILE.fullmatch(text)
    if in_file is None:
        name, _, arguments = text.partition(":")
        return PolicyRecipe(None, name, arguments_of(f"policy {name}", POLICIES[name], arguments))
    file, name, arguments = in_file.groups()
    cls = _class(POLICY, Path(file), name)
    return PolicyRecipe(Path(file), name, arguments_of(f"policy {file}:{name}", cls, arguments or ""))


def find_router(text: str) -> RouterPolicy:
    """The router policy called `NAME` or `FILE.py:NAME`, as `find_policy` finds policies."""
    return _found(ROUTER, text)


def find_own_predictor(text: str) -> LengthPredictor:
    """The predictor of lengths called `FILE.py:NAME`, as `find_policy` finds policies."""
    return _found(PREDICTOR, text)


def find_scaler(text: str) -> Scaler:
    """The scaler called `NAME` or `FILE.py:NAME`, as `find_policy` finds policies."""
    return _found(SCALER, text)


def given_policy(policy: object) -> Policy:
    """The policy that an object or a class is; raises ConfigError for what a file's class may not be."""
    return _given(POLICY, policy)


def given_router(router: object) -> RouterPolicy:
    """The router policy that an object or a class is, as `given_policy`."""
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
    """Return why a file with this import cannot be used."""
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
            return f"uses {name}: it must answer at once, from what it is shown"
    return None


def _is_in(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


# --- the class ------------------------------------------------------------------------------------


def _check(kind: PolicyKind[P], found: P, what: str) -> None:
    known = (*kind.methods, *kind.claims, *kind.others)
    for cls in type(found).__mro__[: type(found).__mro__.index(kind.base)]:
        for own in vars(cls):
            hint = "" if own.startswith("_") or own in known else did_you_mean(own, known, cutoff=0.75)
            if hint:
                raise ConfigError(f"{what}: {own} is nothing a {kind.word} is asked.{hint}")
    for method, arguments in kind.methods.items():
        _check_signature(found, what, method, arguments)
    for claim in kind.claims:
        if not isinstance(value := getattr(found, claim), bool):
            raise ConfigError(f"{what}: {claim} is {value!r}: it must be True or False")
    if isinstance(found, Policy):
        _check_weights(found.token_weights, what)
    elif isinstance(found, RouterPolicy) and found.index not in INDEXES:
        raise ConfigError(f"{what}: index is {found.index!r}: known are {', '.join(INDEXES)}")
    if isinstance(found, Scaler):
        _check_behaviour(found, what)
    if isinstance(found, LengthPredictor | Scaler):
        return
    try:
        found.new_memory()
    except BaseException as error:
        raise ConfigError(f"{what}: new_memory raised {error!r}") from error


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


def _check_behaviour(scaler: Scaler, what: str) -> None:
    try:
        check_behaviour(scaler)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{what}: {error}") from None


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
