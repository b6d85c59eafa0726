"""Policies as they are asked for: by name, or as a class in a user's file.

A file is read and run here, once; what it holds is checked before anything starts and then wrapped
(`actors/core/policies/guard.py`), because it is not our code.
"""

import ast
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

from actors.core.config import ConfigError
from actors.core.names import did_you_mean, unknown
from actors.core.policies import POLICIES, Policy
from actors.core.policies.arguments import construct
from actors.core.policies.check import check_policy, freeze
from actors.core.policies.guard import Guarded

IN_FILE = re.compile(r"(.+\.py):(\w+)(?::(.*))?", re.DOTALL)
UNREPEATABLE = ("random", "secrets", "time", "datetime", "uuid")
"""Modules whose answers differ from run to run."""
INSTEAD = "a run must repeat: take view.random(request, ...) and view.now_s"


def find_policy(text: str) -> Policy:
    """The policy called `NAME`, or class `NAME` of a user's file: `FILE.py:NAME`.

    Either may be followed by parameters: `vtc:output_weight=4,input_weight=1`. Raises ConfigError
    that suggests the nearest name, or says what is wrong with the file, its class or a parameter.
    """
    in_file = IN_FILE.fullmatch(text)
    if in_file is not None:
        file, class_name, arguments = in_file.groups()
        return _from_file(Path(file), class_name, arguments or "")
    name, _, arguments = text.partition(":")
    if name in POLICIES:
        return construct(name, POLICIES[name], arguments)
    if name.endswith(".py"):
        raise ConfigError(f"policy {text!r} names no class: {name}:CLASS")
    raise unknown("policy", name, POLICIES, also=", or FILE.py:NAME")


def _from_file(file: Path, class_name: str, arguments: str) -> Guarded:
    name = f"{file}:{class_name}"
    found = _class(file, class_name)
    policy = freeze(construct(name, found, arguments))
    check_policy(policy, name)
    return Guarded(policy, name)


def _class(file: Path, class_name: str) -> type[Policy]:
    module = _load(file)
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        others = [
            n for n, v in vars(module).items() if isinstance(v, type) and v.__module__ == module.__name__
        ]
        raise ConfigError(f"policy file {file} has no class {class_name}.{did_you_mean(class_name, others)}")
    if Policy not in found.__mro__ or found is Policy:
        raise ConfigError(
            f"class {class_name} in {file} is not a policy: let it inherit from actors.core.policies.Policy"
        )
    return found


def _load(file: Path) -> ModuleType:
    """Run a user's file as a module of its own, in which dataclasses and annotations resolve."""
    try:
        source = file.read_text(encoding="utf-8")
        tree = ast.parse(source, str(file))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"policy file {file} cannot be read: {reason}") from None
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ConfigError(f"policy file {file} cannot be loaded: {_one_line(error)}") from None
    _refuse_unrepeatable(file, tree)
    name = f"sundog_policy_file.{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"policy file {file} cannot be loaded: {_one_line(error)}") from error
    return module


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


# --- what would make two runs differ --------------------------------------------------------------


def _refuse_unrepeatable(file: Path, tree: ast.Module) -> None:
    """Refuse imports of other clocks and random numbers: a policy uses the run's own."""
    for node in ast.walk(tree):
        for name in _used(node):
            if name.split(".")[0] in UNREPEATABLE or name.startswith(("numpy.random", "os.urandom")):
                line = getattr(node, "lineno", 0)
                raise ConfigError(f"policy file {file}, line {line}, uses {name}: {INSTEAD}")


def _used(node: ast.AST) -> list[str]:
    """The modules, and the parts of modules, that a node names."""
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            return [f"{node.module}.{alias.name}" for alias in node.names] if not node.level else []
        case ast.Attribute(value=ast.Name(id=("np" | "numpy")), attr="random"):
            return ["numpy.random"]
        case ast.Attribute(value=ast.Name(id="os"), attr="urandom"):
            return ["os.urandom"]
        case ast.Call(func=ast.Name(id="__import__")):
            return [ast.unparse(argument).strip("'\"") for argument in node.args[:1]]
    return []
