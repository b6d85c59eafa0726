"""Report of walks: the files that one parameter of a function is passed through. `make house` prints it.

A walk begins at a function and reads it in order. It follows each call that is given the parameter, a part
of it, or what was made from it, and that names a function or class of ours, or a method of an object whose
class the function itself says: `self`, an annotated parameter, the result of a call that is annotated. What
is called is read in the same way, depth first. What a record takes as a field, from its constructor or from
`replace`, is at rest there and followed no further; so is a single text or number, and the result of a
function that returns no part of what it was given. A function is read once, and only named when it is
called again or is given a text or number alone. Both branches of an `if` are read.

- A stay is a run of calls within one file: calls into functions of the same file are no new stay.
- A return is a stay in a file in which the walk has stayed before: stays less files.

There is no limit: a long walk with many returns is a place to look for code that stands apart from what it
belongs to.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path

from tools.sizes import PACKAGES, ROOT

WALKS = (("sundog/builds/simulated.py", "deploy", "engine"), ("actors/core/step/plan.py", "plan", "state"))
"""The walks of the report: how options become a deployment, and how a step is planned."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(eq=False)
class Source:
    """File with its definitions and the names that it imports."""

    file: str
    tree: ast.Module

    @cached_property
    def names(self) -> dict[str, ast.AST]:
        """Functions and classes by name."""
        return {node.name: node for node in self.tree.body if isinstance(node, ast.ClassDef | Function)}

    @cached_property
    def imported(self) -> dict[str, tuple[str, str]]:
        """Return, for each imported name, its module and its name in that module."""
        return {
            alias.asname or alias.name: (node.module or "", alias.name)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }


@dataclass(frozen=True)
class Place:
    """A definition: a function, a class, or with `owner` a method."""

    source: Source
    node: ast.AST
    owner: "Place | None" = None

    @property
    def title(self) -> str:
        """Name of the definition, with that of its class."""
        name = getattr(self.node, "name", "")
        return name if self.owner is None else f"{self.owner.title}.{name}"


@dataclass
class Walk:
    """Walk of a parameter: the files and functions that receive it; begins with `read`."""

    house: "House"
    entered: list[Place] = field(default_factory=list)
    results: dict[int, bool] = field(default_factory=dict)
    """Whether the result of each function depends on the parameter."""

    @property
    def stays(self) -> list[tuple[str, list[str]]]:
        """Files in order, each with the functions that were entered in it."""
        return [
            (file, [each.title for each in places])
            for file, places in groupby(self.entered, key=lambda place: place.source.file)
        ]

    @property
    def num_files(self) -> int:
        """Number of different files."""
        return len({file for file, _ in self.stays})

    def read(self, place: Place, given: set[str]) -> bool:
        """Read a function and follow its parameters `given`; return whether its result depends on them."""
        self.entered.append(place)
        if id(place.node) in self.results:
            return self.results[id(place.node)]
        self.results[id(place.node)] = False
        assert isinstance(place.node, Function)
        reading = Reading(self, place, set(given), self.house.parameters(place))
        reading.block(place.node.body)
        self.results[id(place.node)] = reading.gives
        return reading.gives


@dataclass
class Reading:
    """Reading of one function: the names that are followed, and the classes of names."""

    walk: Walk
    place: Place
    followed: set[str]
    classes: dict[str, Place] = field(default_factory=dict)
    """Classes of local names."""
    gives: bool = False

    def block(self, body: list[ast.stmt]) -> None:
        """Read the statements of a block in order."""
        for statement in body:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        """Read a statement: its expressions, what it assigns, and its blocks."""
        if isinstance(node, ast.ClassDef | ast.Import | ast.ImportFrom):
            return
        if not isinstance(node, Function):
            pairs = _assigned(node)
            for value, targets in pairs:
                is_made = self.value(value)
                for target in targets:
                    self.assign(target, value, is_made)
                self.gives |= is_made and isinstance(node, ast.Return)
                if is_made and isinstance(node, ast.AugAssign):
                    self.assign(node.target, value, True)
            for child in ast.iter_child_nodes(node) if not pairs else ():
                if isinstance(child, ast.expr):
                    self.value(child)
        for name in ("body", "handlers", "cases", "orelse", "finalbody"):
            for child in getattr(node, name, []):
                self.statement(child) if isinstance(child, ast.stmt) else self.block(child.body)

    def assign(self, target: ast.expr, value: ast.expr, is_made: bool) -> None:
        """Follow a name to which a followed value is assigned, and forget one to which another value is
        assigned.
        """
        if isinstance(target, ast.Name):
            (self.followed.add if is_made else self.followed.discard)(target.id)
            made = self.walk.house.made(self, value)
            if made is not None:
                self.classes[target.id] = made
        elif isinstance(target, ast.Tuple | ast.List):
            values = (
                value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts) else None
            )
            for index, each in enumerate(target.elts):
                part = value if values is None else values[index]
                self.assign(each, part, is_made if values is None else self.is_named(part))
        elif isinstance(target, ast.Starred):
            self.assign(target.value, value, is_made)

    def is_named(self, node: ast.expr) -> bool:
        """Return whether an expression contains a followed name, without reading calls."""
        return any(isinstance(each, ast.Name) and each.id in self.followed for each in ast.walk(node))

    def value(self, node: ast.expr) -> bool:
        """Read an expression and the calls in it; return whether its value depends on followed names."""
        match node:
            case ast.Name():
                return node.id in self.followed
            case ast.Call():
                return self.call(node)
            case ast.Compare() | ast.BoolOp() | ast.IfExp() | ast.UnaryOp(op=ast.Not()):
                parts = [self.value(each) for each in self.children(node)]
                # A claim about it is no part of it, but `a or b` and `a if c else b` are.
                if isinstance(node, ast.IfExp):
                    return parts[0] or parts[2]
                return any(parts) and isinstance(node, ast.BoolOp)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                for each in node.generators:
                    self.assign(each.target, each.iter, self.value(each.iter))
                    for test in each.ifs:
                        self.value(test)
                parts_of = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
                return any([self.value(each) for each in parts_of])
            case ast.NamedExpr(target=target, value=value):
                is_made = self.value(value)
                self.assign(target, value, is_made)
                return is_made
        return any([self.value(each) for each in self.children(node)])

    @staticmethod
    def children(node: ast.AST) -> Iterator[ast.expr]:
        """Yield the expressions of an expression in the order of the source."""
        if isinstance(node, ast.IfExp):
            yield from (node.body, node.test, node.orelse)
            return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield child
            elif isinstance(child, ast.keyword):
                yield child.value

    def call(self, node: ast.Call) -> bool:
        """Read a call, and the called function if a followed value is passed to it."""
        house = self.walk.house
        receiver = node.func.value if isinstance(node.func, ast.Attribute) else None
        on_it = receiver is not None and self.value(receiver)
        handed = [self.value(each) for each in node.args]
        named = {each.arg: self.value(each.value) for each in node.keywords}
        is_given = on_it or any(handed) or any(named.values())
        match node:
            case ast.Call(func=ast.Name(id="replace"), args=[_]):
                return handed[0]
        place = house.called(self, node)
        if place is None or not is_given:
            return is_given
        if isinstance(place.node, ast.ClassDef):
            place = house.method(place, "__init__") or house.method(place, "__post_init__")
            if place is None:
                return False  # it is at rest in the record
            self.into(place, handed, named, on_it=False, is_bound=True)
            return False
        is_bound = place.owner is not None
        return self.into(place, handed, named, on_it=on_it, is_bound=is_bound)

    def into(
        self, place: Place, handed: list[bool], named: dict[str | None, bool], on_it: bool, is_bound: bool
    ) -> bool:
        """Read the called function, and follow the parameters that get followed values."""
        assert isinstance(place.node, Function)
        arguments = place.node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        names = [each.arg for each in every if each not in arguments.kwonlyargs]
        is_static = any(
            isinstance(each, ast.Name) and each.id == "staticmethod" for each in place.node.decorator_list
        )
        own = names[0] if is_bound and names and not is_static else None
        free = names[1:] if own is not None else names
        given = {name for name, is_made in zip(free, handed, strict=False) if is_made}
        if arguments.vararg is not None and any(handed[len(free) :]):
            given.add(arguments.vararg.arg)
        given |= {name for name, is_made in named.items() if is_made and name is not None}
        if on_it and own is not None:
            given.add(own)
        if not on_it and all(each.arg not in given or _is_plain(each.annotation) for each in every):
            self.walk.entered.append(place)  # a text or a number is at rest
            return True
        return self.walk.read(place, given)


class House:
    """All files of the product, and the definitions that names refer to."""

    def __init__(self, root: Path = ROOT) -> None:
        self.sources: dict[str, Source] = {}
        for package in PACKAGES:
            for path in sorted((root / package).rglob("*.py")):
                file = str(path.relative_to(root))
                self.sources[_module_of(file)] = Source(file, ast.parse(path.read_text(encoding="utf-8")))

    def walk(self, file: str, function: str, parameter: str) -> Walk:
        """Return the walk of a parameter; raises KeyError for an unknown file or function."""
        source = self.sources[_module_of(file)]
        name, _, method = function.partition(".")
        place = Place(source, source.names[name])
        walk = Walk(self)
        walk.read((self.method(place, method) or place) if method else place, {parameter})
        return walk

    def resolve(self, source: Source, name: str) -> Place | None:
        """Return the function or class that a name in a file refers to, wherever it is defined."""
        for _ in range(5):  # names are handed on by packages
            if name in source.names:
                return Place(source, source.names[name])
            module, name = source.imported.get(name, ("", ""))
            found = self.sources.get(module) or self.sources.get(f"sundog.{module}")
            if found is None:
                return None
            source = found
        return None

    def method(self, owner: Place, name: str) -> Place | None:
        """Return a method of a class or of its bases; None if there is none."""
        assert isinstance(owner.node, ast.ClassDef)
        for each in owner.node.body:
            if isinstance(each, Function) and each.name == name:
                return Place(owner.source, each, owner)
        return None

    def called(self, reading: Reading, node: ast.Call) -> Place | None:
        """Return the function, class or method that a call refers to, if the product defines it."""
        source = reading.place.source
        match node.func:
            case ast.Name(id=name):
                return self.resolve(source, name)
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                found = reading.classes.get(owner) or self.resolve(source, owner)
                is_class = found is not None and isinstance(found.node, ast.ClassDef)
                return self.method(found, name) if found is not None and is_class else None
            case ast.Attribute(value=ast.Call() as call, attr=name):
                made = self.made(reading, call)
                return None if made is None else self.method(made, name)
        return None

    def made(self, reading: Reading, node: ast.expr) -> Place | None:
        """Return the class of the product that a call returns, if it is annotated."""
        place = self.called(reading, node) if isinstance(node, ast.Call) else None
        if place is None or isinstance(place.node, ast.ClassDef):
            return place
        assert isinstance(place.node, Function)
        return self.annotated(place.source, place.node.returns)

    def annotated(self, source: Source, annotation: ast.expr | None) -> Place | None:
        """Return the class of the product that an annotation names; None if it is more than a name."""
        match annotation:
            case ast.Name(id=name) | ast.Constant(value=str(name)):
                found = self.resolve(source, name)
                return found if found is not None and isinstance(found.node, ast.ClassDef) else None
        return None

    def parameters(self, place: Place) -> dict[str, Place]:
        """Return the classes of a function's parameters."""
        assert isinstance(place.node, Function)
        arguments = place.node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        found = {each.arg: self.annotated(place.source, each.annotation) for each in every}
        if place.owner is not None and every:
            found[every[0].arg] = place.owner
        return {name: known for name, known in found.items() if known is not None}


def _assigned(node: ast.stmt) -> list[tuple[ast.expr, list[ast.expr]]]:
    """Return the values of a statement, each with the targets that it is assigned to."""
    match node:
        case ast.Assign(value=value, targets=targets):
            return [(value, targets)]
        case ast.AnnAssign(value=ast.expr() as value, target=target):
            return [(value, [target])]
        case ast.Return(value=ast.expr() as value) | ast.AugAssign(value=value):
            return [(value, [])]
        case ast.For(iter=value, target=target) | ast.AsyncFor(iter=value, target=target):
            return [(value, [target])]
        case ast.With(items=items) | ast.AsyncWith(items=items):
            names = [[each.optional_vars] if each.optional_vars is not None else [] for each in items]
            return [(each.context_expr, name) for each, name in zip(items, names, strict=True)]
    return []


def _is_plain(annotation: ast.expr | None) -> bool:
    """Return whether an annotation allows only texts, numbers and None."""
    match annotation:
        case ast.Name(id="str" | "int" | "float" | "bool" | "Path") | ast.Constant(value=None):
            return True
        case ast.BinOp(left=left, right=right):
            return _is_plain(left) and _is_plain(right)
    return False


def _module_of(file: str) -> str:
    name = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    return name if name.startswith("sundog.") or name == "sundog" else f"sundog.{name}"


def main() -> None:
    """Print the walks of the report, or those given as FILE:FUNCTION:PARAMETER, file by file."""
    house = House()
    asked = [tuple(text.split(":")) for text in sys.argv[1:]]
    for file, function, parameter in asked or WALKS:
        walk = house.walk(file, function, parameter)
        num_stays = len(walk.stays)
        print(
            f"walk of `{parameter}` from {file}:{function}: {num_stays} stays in {walk.num_files} files,"
            f" {num_stays - walk.num_files} returns"
        )
        for number, (where, titles) in enumerate(walk.stays, 1) if asked else ():
            print(f"{number:>5}  {where:<36}{', '.join(dict.fromkeys(titles))}")


if __name__ == "__main__":
    main()
