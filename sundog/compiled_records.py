"""The methods of records, written out for the compiler: a build step of `sundog.fast`.

`@dataclass` makes `__init__` when a module is imported, as interpreted code that sets the attributes of a
compiled class one by one: 2.6 us for a frozen record of seven fields, 0.08 where its `__init__` is compiled.
So what is compiled has the `__init__` in its source; the source that people read stays a dataclass. So have
`__repr__`, `__eq__` and `__hash__`, which cost a millisecond of every start where a record's are made at
import. The decorator stays: `replace`, patterns and `frozen` are those of the source. A frozen
record's compiled `__init__` stores into the C struct; only Python's assignment meets the guard.
"""

import ast
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "sundog"


@dataclass(frozen=True, slots=True)
class RecordField:
    """A field of a dataclass, as its source says it."""

    name: str
    annotation: str
    default: str | None = None
    factory: str | None = None
    """The expression whose call makes the default."""
    is_parameter: bool = True
    is_shown: bool = True
    is_compared: bool = True


def stage(root: Path, folder: Path, modules: Sequence[str]) -> None:
    """Copy the package below `root` into `folder`, with constructors written into the `modules`."""
    if (root / PACKAGE).is_dir():
        shutil.copytree(
            root / PACKAGE, folder / PACKAGE, ignore=lambda _, names: [n for n in names if not _is_source(n)]
        )
        # For type checkers it names the whole public API, and with it every module and library.
        (folder / PACKAGE / "__init__.py").write_text("", encoding="utf-8")
    for name in modules:
        if not (folder / name).exists():
            shutil.copy(root / name, folder / name)
    sources = {path: path.read_text(encoding="utf-8") for path in folder.rglob("*.py")}
    bases = set().union(*(bases_in(source) for source in sources.values()))
    for name in modules:
        path = folder / name
        path.write_text(with_constructors(sources[path], bases), encoding="utf-8")


def _is_source(name: str) -> bool:
    return name.endswith((".py", ".pyi", "py.typed")) or ("." not in name and name != "__pycache__")


def bases_in(source: str) -> set[str]:
    """Return the names of all classes that others in this source inherit from."""
    classes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))
    return {ast.unparse(base).rpartition(".")[2] for each in classes for base in each.bases}


def with_constructors(source: str, bases: Iterable[str] = ()) -> str:
    """Return the source with an `__init__`, and a `__reduce__` for copies, in dataclasses that can have one.

    A class of the `bases`, one that inherits, and one with fields of unusual kinds stay as they are.
    """
    lines = source.splitlines(keepends=True)
    tree = ast.parse(source)
    for node in sorted(_dataclasses(tree), key=lambda each: -each.lineno):
        fields = _fields(node, source)
        if fields is None or node.name in bases or node.bases or node.keywords:
            continue
        assert node.end_lineno is not None
        methods = [*_constructor(node, fields), *_comparisons(node, fields)]
        lines[node.end_lineno :] = [*methods, *lines[node.end_lineno :]]
        lines[node.decorator_list[0].lineno - 1] = _without_methods(node)
    return "".join(lines)


def _dataclasses(tree: ast.Module) -> list[ast.ClassDef]:
    return [node for node in tree.body if isinstance(node, ast.ClassDef) and _decorator(node) is not None]


def _decorator(node: ast.ClassDef) -> ast.expr | None:
    if len(node.decorator_list) != 1:
        return None
    (decorator,) = node.decorator_list
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    is_one_line = decorator.end_lineno == decorator.lineno
    return decorator if isinstance(called, ast.Name) and called.id == "dataclass" and is_one_line else None


def _option(node: ast.ClassDef, name: str, *, usual: bool = False) -> bool:
    decorator = _decorator(node)
    keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
    given = [ast.unparse(each.value) == "True" for each in keywords if each.arg == name]
    return given[0] if given else usual


def _fields(node: ast.ClassDef, source: str) -> list[RecordField] | None:
    """Return the fields of a dataclass; None if it, or one of them, is of a kind that is not written out."""
    if _option(node, "order") or _option(node, "unsafe_hash"):
        return None
    fields: list[RecordField] = []
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name in ("__init__", "__reduce__", "__getstate__"):
            return None
        if not isinstance(each, ast.AnnAssign) or not isinstance(each.target, ast.Name):
            continue
        annotation = ast.get_source_segment(source, each.annotation) or ""
        if "ClassVar" in annotation:
            continue
        field = _field(each.target.id, annotation, each.value, source)
        if field is None:
            return None
        fields.append(field)
    return fields or None


def _field(name: str, annotation: str, value: ast.expr | None, source: str) -> RecordField | None:
    if "InitVar" in annotation or "KW_ONLY" in annotation:
        return None
    is_call = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "field"
    if not is_call:
        default = None if value is None else ast.get_source_segment(source, value)
        return RecordField(name, annotation, default)
    assert isinstance(value, ast.Call)
    said = {keyword.arg: keyword.value for keyword in value.keywords}
    if not said.keys() <= {"default", "default_factory", "init", "repr", "compare"}:
        return None
    is_parameter = _is_true(said, "init")
    default, factory = (
        None if (given := said.get(key)) is None else ast.get_source_segment(source, given)
        for key in ("default", "default_factory")
    )
    is_optional = "None" in annotation
    return (
        None
        if factory and is_optional and is_parameter
        else RecordField(
            name,
            annotation,
            default=default,
            factory=factory,
            is_parameter=is_parameter,
            is_shown=_is_true(said, "repr"),
            is_compared=_is_true(said, "compare"),
        )
    )


def _is_true(said: Mapping[str | None, ast.expr], key: str) -> bool:
    return key not in said or ast.unparse(said[key]) == "True"


def _constructor(node: ast.ClassDef, fields: Sequence[RecordField]) -> list[str]:
    parameters, statements = ["self"], []
    for field in fields:
        made = field.default if field.factory is None else f"({field.factory})()"
        if not field.is_parameter:
            statements += [] if made is None else [f"self.{field.name} = {made}"]
            continue
        if field.factory is not None:
            parameters.append(f'{field.name}: "{_unquoted(field.annotation)} | None" = None')
            statements.append(f"self.{field.name} = {made} if {field.name} is None else {field.name}")
        else:
            default = "" if field.default is None else f" = {field.default}"
            parameters.append(f"{field.name}: {field.annotation}{default}")
            statements.append(f"self.{field.name} = {field.name}")
    if _option(node, "frozen"):
        statements = [f"{statement}  # type: ignore[misc]" for statement in statements]
    names = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    if "__post_init__" in names:
        statements.append("self.__post_init__()")
    lines = [
        "\n",
        f"    def __init__({', '.join(parameters)}) -> None:\n",
        *(f"        {statement}\n" for statement in statements or ["pass"]),
    ]
    if all(field.is_parameter for field in fields):
        given = "".join(f"self.{field.name}, " for field in fields)
        # A compiled class with an `__init__` cannot be made without its arguments, as `copy` and `pickle` do.
        lines += [
            "\n",
            "    def __reduce__(self) -> tuple[object, ...]:\n",
            f"        return {node.name}, ({given})\n",
        ]
    return lines


def _comparisons(node: ast.ClassDef, fields: Sequence[RecordField]) -> list[str]:
    own = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    lines: list[str] = []

    def add(method: str, signature: str, *body: str) -> None:
        if method not in own:
            lines.extend(["\n", f"    def {method}{signature}:\n", *(f"        {line}\n" for line in body)])

    if _option(node, "repr", usual=True):
        shown = ", ".join(f"{each.name}={{self.{each.name}!r}}" for each in fields if each.is_shown)
        add("__repr__", "(self) -> str", f'return f"{{type(self).__qualname__}}({shown})"')
    if _option(node, "eq", usual=True):
        compared = [each.name for each in fields if each.is_compared]
        mine, others = ("".join(f"{of}.{name}, " for name in compared) for of in ("self", "other"))
        add(
            "__eq__",
            "(self, other: object) -> bool",
            f"if not isinstance(other, {node.name}):",
            "    return NotImplemented",
            f"return ({mine}) == ({others})",
        )
        if _option(node, "frozen"):
            add("__hash__", "(self) -> int", f"return hash(({mine}))")
    return lines


def _without_methods(node: ast.ClassDef) -> str:
    decorator = _decorator(node)
    assert decorator is not None
    keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
    said = {each.arg: ast.unparse(each.value) for each in keywords} | dict.fromkeys(
        ("init", "repr", "eq"), "False"
    )
    return f"@dataclass({', '.join(f'{name}={value}' for name, value in said.items())})\n"


def _unquoted(annotation: str) -> str:
    return annotation.strip("\"'")
