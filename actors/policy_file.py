"""Policies and routers as they are asked for: by name, or as a class in a user's file.

A file is read and run here, once; what it holds is checked before anything starts and then wrapped
(`guard.py` in `actors/core/policies/` and `actors/core/routers/`), because it is not our code.
"""

import ast
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

from actors.core.config import ConfigError
from actors.core.names import did_you_mean, unknown
from actors.core.policies import POLICIES, Policy
from actors.core.policies.arguments import construct
from actors.core.policies.check import check_policy, freeze
from actors.core.policies.guard import Guarded
from actors.core.records import dataclass
from actors.core.routers import ROUTERS, RouterPolicy
from actors.core.routers.guard import GuardedRouter, check_router
from actors.repeatable import unrepeatable

IN_FILE = re.compile(r"(.+\.py):(\w+)(?::(.*))?", re.DOTALL)

P = TypeVar("P", Policy, RouterPolicy)


@dataclass(frozen=True, slots=True)
class Kind(Generic[P]):
    """What is asked for by name: the known ones, and what a user's class must be and is wrapped in."""

    word: str
    package: str
    """Where its base class is imported from."""
    known: Mapping[str, Callable[..., P]]
    base: type[P]
    check: Callable[[P, str], None]
    wrap: Callable[[P, str], P]
    remembers: str
    instead: str
    """What to use in place of other clocks and random numbers."""


POLICY = Kind(
    "policy",
    "actors.core.policies",
    POLICIES,
    Policy,
    check_policy,
    Guarded,
    "a policy remembers in view.memory",
    "a run must repeat: take view.random(request, ...) and view.now_s",
)
ROUTER = Kind(
    "router",
    "actors.core.routers",
    ROUTERS,
    RouterPolicy,
    check_router,
    GuardedRouter,
    "a router remembers in fleet.memory",
    "a run must repeat: take fleet.random(request, ...) and fleet.now_s",
)


def find_policy(text: str) -> Policy:
    """The policy called `NAME`, or class `NAME` of a user's file: `FILE.py:NAME`.

    Either may be followed by parameters: `vtc:output_weight=4,input_weight=1`. Raises ConfigError
    that suggests the nearest name, or says what is wrong with the file, its class or a parameter.
    """
    return _found(POLICY, text)


def find_router(text: str) -> RouterPolicy:
    """The router policy called `NAME` or `FILE.py:NAME`, as `find_policy` finds policies."""
    return _found(ROUTER, text)


def _found(kind: Kind[P], text: str) -> P:
    in_file = IN_FILE.fullmatch(text)
    if in_file is not None:
        file, class_name, arguments = in_file.groups()
        return _from_file(kind, Path(file), class_name, arguments or "")
    name, _, arguments = text.partition(":")
    if name in kind.known:
        return construct(f"{kind.word} {name}", kind.known[name], arguments)
    if name.endswith(".py"):
        raise ConfigError(f"{kind.word} {text!r} names no class: {name}:CLASS")
    raise unknown(kind.word, name, kind.known, also=", or FILE.py:NAME")


def _from_file(kind: Kind[P], file: Path, class_name: str, arguments: str) -> P:
    name = f"{file}:{class_name}"
    what = f"{kind.word} {name}"
    policy = freeze(construct(what, _class(kind, file, class_name), arguments), kind.remembers)
    kind.check(policy, what)
    return kind.wrap(policy, name)


def _class(kind: Kind[P], file: Path, class_name: str) -> type[P]:
    module = _load(kind, file)
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        others = [
            n for n, v in vars(module).items() if isinstance(v, type) and v.__module__ == module.__name__
        ]
        hint = did_you_mean(class_name, others) or f" Its classes: {', '.join(others) or 'none'}."
        raise ConfigError(f"{kind.word} file {file} has no class {class_name}.{hint}")
    if kind.base not in found.__mro__ or found is kind.base:
        base = f"{kind.package}.{kind.base.__name__}"
        raise ConfigError(f"class {class_name} in {file} is not a {kind.word}: let it inherit from {base}")
    return found


def _load(kind: Kind[P], file: Path) -> ModuleType:
    """Run a user's file as a module of its own, in which dataclasses and annotations resolve."""
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
    _refuse_relative(kind, file, tree)
    reason = unrepeatable(tree, kind.instead, kind.remembers)
    if reason is not None:
        raise ConfigError(f"{kind.word} file {file}, {reason}")
    name = f"sundog_{kind.word}_file.{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__dict__["print"] = partial(print, file=sys.stderr)  # stdout is for results
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # a user's file may raise anything
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == spec.origin]
        where = f" (line {lines[-1]})" if lines else ""
        raise ConfigError(f"{kind.word} file {file} cannot be loaded: {_one_line(error)}{where}") from error
    return module


def _refuse_relative(kind: Kind[P], file: Path, tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            wanted = "." * node.level + (node.module or "")
            raise ConfigError(
                f"{kind.word} file {file}, line {node.lineno}, imports from {wanted}: a {kind.word} is one"
                " file and belongs to no package; write what it needs into the file"
            )


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
