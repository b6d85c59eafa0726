"""Build step of `sundog.fast` that writes out the methods of records for the compiler.

`@dataclass` makes `__init__` when a module is imported, as interpreted code that sets the attributes of a
compiled class one by one: 2.6 us for a frozen record of seven fields, 0.08 if its `__init__` is compiled. So
compiled sources contain the `__init__`; the source for people stays a dataclass. `__repr__`, `__eq__` and
`__hash__` are written out, too: made at import, they cost a millisecond of every start. The decorator stays,
so that `replace`, patterns and `frozen` work as in the source. A frozen record's compiled `__init__` stores
into the C struct; only assignments from Python raise.

`match` by class becomes a chain of `isinstance`, which the compiler answers with a comparison of types where
a `case` costs a call (60 instructions each).

A record of plain values cannot be part of a reference cycle: the cycle collector skips it, and one freed
instance is kept for reuse (mypyc's `acyclic` and `free_list_len`).
"""

import ast
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "sundog"
ACYCLIC = "@mypyc_attr(acyclic=True, free_list_len=1)\n"
IMPORT = "from mypy_extensions import mypyc_attr\n"
PLAIN = frozenset(
    "None bool bytes dict float frozenset int list set str tuple Literal Mapping RankValue Sequence".split()
)
"""Types whose values cannot be part of a reference cycle: plain values, and containers of plain values."""
WITH_KEYS = frozenset(("KvBlocks", "KvEvents", "Submit"))
"""Records whose values are keys of blocks: integers or bytes."""


@dataclass(frozen=True, slots=True)
class RecordField:
    """Field of a dataclass in the source."""

    name: str
    annotation: str
    default: str | None = None
    factory: str | None = None
    """Expression whose call returns the default."""
    is_parameter: bool = True
    is_shown: bool = True
    is_compared: bool = True


def stage(root: Path, folder: Path, modules: Sequence[str]) -> None:
    """Copy the package below `root` into `folder`, with constructors written into `modules`."""
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
    plain = plain_names(sources[folder / name] for name in modules)
    for name in modules:
        path = folder / name
        source = with_isinstance(with_constructors(sources[path], bases, plain))
        path.write_text(source, encoding="utf-8")


def _is_source(name: str) -> bool:
    return name.endswith((".py", ".pyi", "py.typed")) or ("." not in name and name != "__pycache__")


def bases_in(source: str) -> set[str]:
    """Return the names of all classes that others in this source inherit from."""
    classes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))
    return {ast.unparse(base).rpartition(".")[2] for each in classes for base in each.bases}


def plain_names(sources: Iterable[str]) -> set[str]:
    """Return the names of records, enums and types that contain only plain values.

    A name with several definitions is included if all of them contain only plain values.
    """
    parts: dict[str, set[str]] = {}
    for source in sources:
        for name, names in _definitions(ast.parse(source)):
            parts.setdefault(name, set()).update(names)
    plain = set(parts)
    while rest := {name for name in plain if not parts[name] <= PLAIN | plain}:
        plain -= rest
    return plain


def _definitions(tree: ast.Module) -> Iterator[tuple[str, set[str]]]:
    """Yield each class and type that a module defines, with the names in its definition."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
            is_record = _decorator(node) is not None and not bases
            if bases and bases <= {"Enum", "IntEnum"}:
                yield node.name, set()
            elif is_record or bases == {"NamedTuple"}:
                fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
                names = set().union(*(_names_in(each.annotation) for each in fields))
                yield node.name, names - {"object"} if node.name in WITH_KEYS else names
            else:
                yield node.name, {"object"}
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            is_type = isinstance(node.value, ast.Subscript | ast.BinOp | ast.Name)
            yield node.targets[0].id, _names_in(node.value) if is_type else {"object"}


def _names_in(annotation: ast.AST) -> set[str]:
    """Return the names in an annotation, quoted or not, except for the words of a Literal."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            return _names_in(ast.parse(annotation.value, mode="eval"))
        except SyntaxError:
            return {"object"}
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        return set()
    names = {annotation.id} if isinstance(annotation, ast.Name) else set[str]()
    return names.union(*map(_names_in, ast.iter_child_nodes(annotation)))


def with_constructors(source: str, bases: Iterable[str] = (), plain: Collection[str] = ()) -> str:
    """Return the source with an `__init__`, and a `__reduce__` for copies, in dataclasses that can have one.

    Classes in `bases`, subclasses, and classes with unusual fields stay unchanged. Records named in `plain`
    are declared acyclic.
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
        attributes = ACYCLIC if node.name in plain else ""
        lines[node.decorator_list[0].lineno - 1] = attributes + _without_methods(node)
    return "".join(lines).replace(ACYCLIC, IMPORT + ACYCLIC, 1)


def with_isinstance(source: str) -> str:
    """Return the source with `isinstance` in place of each `match` of a name by classes alone."""
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Match) or not isinstance(node.subject, ast.Name):
            continue
        tests = [_test_of(node.subject.id, case) for case in node.cases]
        if None in tests or not tests[0]:
            continue
        lines[node.lineno - 1] = " " * node.col_offset + "if True:\n"
        for number, (case, test) in enumerate(zip(node.cases, tests, strict=True)):
            row = case.pattern.lineno - 1
            last = case.pattern if case.guard is None else case.guard
            assert last.end_col_offset is not None
            head = lines[row][: lines[row].index("case ")]
            word = "" if not test else "elif " if number else "if "
            rest = lines[row].encode()[last.end_col_offset :].decode()
            lines[row] = f"{head}{word}{test or 'else'}{rest}"
    return "".join(lines)


def _test_of(subject: str, case: ast.match_case) -> str | None:
    """Return the expression that a case tests, empty for `_`; None if it is not of classes in one line."""
    pattern, guard = case.pattern, case.guard
    end = pattern if guard is None else guard
    if end.end_lineno != pattern.lineno:
        return None
    if isinstance(pattern, ast.MatchAs) and pattern.pattern is None and pattern.name is None:
        return "" if guard is None else None
    names: list[str] = []
    for part in pattern.patterns if isinstance(pattern, ast.MatchOr) else [pattern]:
        if not isinstance(part, ast.MatchClass) or part.patterns or part.kwd_patterns:
            return None
        names.append(ast.unparse(part.cls))
    classes = names[0] if len(names) == 1 else f"({', '.join(names)})"
    test = f"isinstance({subject}, {classes})"
    return test if guard is None else f"{test} and ({ast.unparse(guard)})"


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
    """Return the fields of a dataclass; None if any part of it is unsupported."""
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
