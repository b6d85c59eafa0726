"""Types of a record's fields, read from the source where compilation has erased type arguments."""

import ast
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import GenericAlias, NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from sundog.actors.core.queue.policy import RankValue
from sundog.actors.messages.client import ChatMessage, Prompt

ROOT = Path(__file__).parents[3]


def is_record(hint: object) -> bool:
    """Return whether it is one of our records: a dataclass, or a NamedTuple."""
    return isinstance(hint, type) and (is_dataclass(hint) or hasattr(hint, "_fields"))


@cache
def typed_fields(record: type) -> dict[str, Any]:
    """Return the fields of a record and their types, in order, from its source."""
    module = sys.modules[record.__module__]
    path = _source_of(record.__module__)
    if path is None:
        path = Path(str(module.__file__))
    found = next(
        node
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.ClassDef) and node.name == record.__name__
    )
    typed = {
        node.target.id: eval(compile(ast.Expression(node.annotation), path, "eval"), vars(module))
        for node in found.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    names = [each.name for each in fields(record)] if is_dataclass(record) else record._fields  # type: ignore[attr-defined]
    return {name: typed[name] for name in names}


def _source_of(module: str) -> Path | None:
    """Return the source file of one of our modules, whose `__file__` is a library if compiled."""
    folder = ROOT.joinpath(*module.split("."))
    candidates = (folder.with_suffix(".py"), folder / "__init__.py")
    return next((path for path in candidates if path.exists()), None)


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def optional(hint: object) -> Any:
    """Return the type that may be None instead; None for any other hint."""
    if get_origin(hint) not in (Union, UnionType):
        return None
    others = [each for each in get_args(hint) if each is not NoneType]
    return others[0] if len(others) == 1 and len(others) < len(get_args(hint)) else None


def element(hint: object) -> Any:
    """Return the type of the elements of a sequence of any length; None for any other hint."""
    args = get_args(hint)
    if get_origin(hint) is tuple and len(args) == 2 and args[1] is Ellipsis:
        return args[0]
    return args[0] if get_origin(hint) is Sequence else None


def wire_type(hint: Any) -> Any:
    """Return the type that msgspec reads for a value of this type: records are tuples of their fields."""
    if hint is RankValue or hint is object:
        return Any
    if hint == Prompt:
        return str | int | tuple[int | wire_type(ChatMessage), ...]  # type: ignore[misc]  # a type by value
    if hint == OPTIONS:
        return str
    if is_record(hint):
        return GenericAlias(tuple, tuple(wire_type(each) for each in field_types(hint)))
    if (inner := element(hint)) is not None:
        return GenericAlias(tuple, (wire_type(inner), ...))
    if get_origin(hint) is tuple:
        return GenericAlias(tuple, tuple(wire_type(each) for each in get_args(hint)))
    if (maybe := optional(hint)) is not None:
        return wire_type(maybe) | None
    return hint


OPTIONS = Mapping[str, object]
"""Type of a JSON object, sent as its text: its numbers may have more than 64 bits."""


def field_types(record: type) -> tuple[Any, ...]:
    """Return the types of a record's fields, in order."""
    return tuple(typed_fields(record).values())
