"""Source code of the graph, by inspection: the lines of an actor that handle a message.

Nothing here depends on names of actors or messages. An actor's class is found by the name that it is
constructed with (`Router("router", …)`, `Executor(f"executor-{replica}", …)`), a handler by the cases of its
`handle`. Files are parsed and not imported, so that compiled modules have their lines, too.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

MOST_LINES = 16
"""Most lines of one function to show; the rest is counted."""
MOST_FUNCTIONS = 3
SENDS = ("tell", "ask", "request")

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Code(NamedTuple):
    """Lines of a file, from `line` on; `calls` are the functions of the pure core that they call."""

    title: str
    file: str
    line: int
    text: str
    calls: tuple[str, ...] = ()


@dataclass(slots=True)
class Module:
    """Parsed file, with its imports and definitions."""

    file: str
    text: str
    tree: ast.Module
    imported: dict[str, str] = field(default_factory=dict)
    """Source module of each imported name."""

    @classmethod
    def of(cls, file: str, text: str) -> "Module":
        module = cls(file, text, ast.parse(text))
        for node in module.tree.body:
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                module.imported |= dict.fromkeys((alias.name for alias in node.names), node.module)
        return module

    def code(self, title: str, node: ast.AST, calls: tuple[str, ...] = ()) -> Code:
        """Return the lines of a node, the first `MOST_LINES` of them."""
        first, last = _lines(node)
        lines = self.text.splitlines()[first - 1 : last]
        cut = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
        most = len(lines) if len(lines) <= MOST_LINES + 2 else MOST_LINES
        shown = [line[cut:] for line in lines[:most]]
        if (num_left := len(lines) - len(shown)) > 0:
            shown.append(f"… {num_left} more")
        return Code(title, self.file, line=first, text="\n".join(shown), calls=calls)


def _lines(node: ast.AST) -> tuple[int, int]:
    if isinstance(node, ast.match_case):
        return node.pattern.lineno, node.body[-1].end_lineno or node.pattern.lineno
    assert isinstance(node, ast.stmt)
    return node.lineno, node.end_lineno or node.lineno


@dataclass(slots=True)
class ActorClass:
    """Class of actors, with its own methods and those inherited from other classes here."""

    name: str
    module: Module
    bases: tuple[str, ...]
    methods: dict[str, Function]


class Sources:
    """All classes of `actors/`, and the names of their instances."""

    def __init__(self) -> None:
        self._root = Path(str(files("sundog.actors")))

    @cached_property
    def _modules(self) -> dict[str, Module]:
        found = {}
        for path in sorted(self._root.rglob("*.py")):
            place = path.relative_to(self._root.parent)
            name = "sundog." + ".".join(place.with_suffix("").parts).removesuffix(".__init__")
            found[name] = Module.of(str(place), path.read_text(encoding="utf-8"))
        return found

    @cached_property
    def _classes(self) -> dict[str, ActorClass]:
        found = {}
        for module in self._modules.values():
            for node in module.tree.body:
                if isinstance(node, ast.ClassDef):
                    bases = tuple(ast.unparse(base).partition("[")[0] for base in node.bases)
                    methods = {each.name: each for each in node.body if isinstance(each, Function)}
                    found[node.name] = ActorClass(node.name, module, bases, methods)
        return found

    @cached_property
    def _named(self) -> list[tuple[re.Pattern[str], ActorClass]]:
        found = []
        for module in self._modules.values():
            for function in ast.walk(module.tree):
                if isinstance(function, Function):
                    for call, pattern in _constructed(function):
                        made = self._classes.get(call)
                        if made is not None and "handle" in made.methods:
                            found.append((re.compile(pattern), made))
        return found

    def actor(self, name: str) -> ActorClass | None:
        """Return the class of the actor with this name; None if no code here constructs it."""
        return next((made for pattern, made in self._named if pattern.fullmatch(name)), None)

    def message(self, name: str) -> str:
        """Return the first paragraph of a message's docstring; empty if there is no such class."""
        found = self._classes.get(name)
        if found is None:
            return ""
        tree = next(each for each in found.module.tree.body if getattr(each, "name", None) == name)
        assert isinstance(tree, ast.ClassDef)
        return " ".join((ast.get_docstring(tree) or "").partition("\n\n")[0].split())

    def sent_by(self, actor: str, message: str) -> list[Code]:
        """Return the methods of an actor that send such a message, if one names it."""
        found = self.actor(actor)
        if found is None:
            return []
        return [
            self._method(found, method)
            for method in found.methods.values()
            if _sends(method, message) and method.name != "handle"
        ][:1]

    def handled_by(self, actor: str, message: str) -> list[Code]:
        """Return the case of the actor's `handle` for a message, and the methods that it calls."""
        found = self.actor(actor)
        if found is None:
            return []
        case = _case(found.methods["handle"], message)
        if case is None:
            return []
        own = [found.methods[name] for name in _own_calls(case) if name in found.methods]
        title = f"{found.name}.handle"
        return [
            found.module.code(title, case),
            *(self._method(found, method) for method in own[: MOST_FUNCTIONS - 1]),
        ]

    def _method(self, owner: ActorClass, method: Function) -> Code:
        calls = tuple(dict.fromkeys(self._core_calls(owner, method)))
        return owner.module.code(f"{owner.name}.{method.name}", method, calls)

    def _core_calls(self, owner: ActorClass, method: Function) -> Iterator[str]:
        for node in ast.walk(method):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            place = owner.module.imported.get(node.func.id, "")
            module = self._modules.get(place) if place.startswith("sundog.actors.core.") else None
            for each in [] if module is None else module.tree.body:
                if isinstance(each, Function) and each.name == node.func.id:
                    assert module is not None
                    yield f"{each.name} ({module.file}:{each.lineno})"


def _constructed(function: Function) -> Iterator[tuple[str, str]]:
    named = {
        node.targets[0].id: node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            first = node.args[0]
            value = named.get(first.id) if isinstance(first, ast.Name) else first
            if value is not None and (pattern := _pattern(value)) is not None:
                yield node.func.id, pattern


def _pattern(value: ast.expr) -> str | None:
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return re.escape(value.value)
    if isinstance(value, ast.JoinedStr):
        return "".join(
            re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".*" for part in value.values
        )
    return None


def _case(handle: Function, message: str) -> ast.match_case | None:
    for node in ast.walk(handle):
        if isinstance(node, ast.match_case):
            patterns = node.pattern.patterns if isinstance(node.pattern, ast.MatchOr) else [node.pattern]
            if any(
                isinstance(each, ast.MatchClass) and ast.unparse(each.cls) == message for each in patterns
            ):
                return node
    return None


def _own_calls(case: ast.match_case) -> Iterator[str]:
    for statement in case.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("self."):
                yield ast.unparse(node.func).removeprefix("self.")


def _sends(method: Function, message: str) -> bool:
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", message).lower()
    held = {snake}

    def is_new(value: ast.AST) -> bool:
        return isinstance(value, ast.Call) and ast.unparse(value.func) == message

    for node in ast.walk(method):
        if isinstance(node, ast.Assign) and is_new(node.value) and isinstance(node.targets[0], ast.Name):
            held.add(node.targets[0].id)
    sent = (
        arg
        for node in ast.walk(method)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SENDS
        for arg in node.args
    )
    return any(is_new(arg) or (isinstance(arg, ast.Name) and arg.id in held) for arg in sent)
