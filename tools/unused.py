"""Names that only tests use: the product defines them, and does not read them.

A name is a function, a class, a method, an attribute of a class or a constant of a module. It is used if it
is loaded, passed as a keyword, or occurs in a text other than a docstring, in any file of the product, in
templates and in the examples of `docs/`. Names that other programs read are in `READ_ELSEWHERE`.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tools.sizes import PACKAGES, ROOT

READ_ELSEWHERE = {
    "_repr_html_": "notebooks show it",
    "_repr_svg_": "notebooks show it",
    "answered_by": "type checkers find the answer to a message by it",
    "deadline_to_sleep_time": "a clock of Trio has it",
    "keep_alive_timeout": "Hypercorn reads it",
    "kv_offloading_backend": "an option of vLLM that is taken and has one value",
    "scheduling_policy": "checks a value of files of measured servers",
    "start_clock": "a clock of Trio has it",
}
WORD = re.compile(r"[A-Za-z_]\w+")
TEXTS = (".jinja", ".js", ".html", ".css", ".h", ".cpp", ".toml")


def used(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a file uses, without those that it only defines or has in docstrings."""
    docstrings: set[int] = set()
    for node in ast.walk(tree):  # a body comes before what is in it
        if isinstance(node, ast.Name | ast.Attribute):
            if isinstance(node.ctx, ast.Load):
                yield node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.keyword):
            if node.arg is not None:
                yield node.arg
        elif isinstance(node, ast.MatchClass):
            yield from node.kwd_attrs
        elif isinstance(node, ast.Expr):
            docstrings.add(id(node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield from WORD.findall(node.value)


def defined(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the names that modules and classes define, with their lines."""
    for owner in ast.walk(tree):
        if not isinstance(owner, ast.Module | ast.ClassDef):
            continue
        for node in owner.body:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    yield node.name, node.lineno
                case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                    yield name, node.lineno


def used_by_tests_alone(root: Path = ROOT) -> dict[str, list[str]]:
    """Return the names that tests use and the product does not, with the places that define them."""
    used_here: set[str] = set()
    places: dict[str, list[str]] = defaultdict(list)
    for folder in (*PACKAGES, "tools"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix == ".py":
                tree = ast.parse(path.read_text(encoding="utf-8"))
                used_here.update(used(tree))
                for name, line in defined(tree) if folder in PACKAGES else ():
                    places[name].append(f"{path.relative_to(root)}:{line}")
            elif path.suffix in TEXTS:
                used_here.update(WORD.findall(path.read_text(encoding="utf-8")))
    for path in sorted((root / "docs").rglob("*.py")):
        used_here.update(used(ast.parse(path.read_text(encoding="utf-8"))))
    unused = {name for name in places if name not in used_here and not name.startswith("__")}
    tested: set[str] = set()
    for path in (root / "tests").rglob("*.py"):
        tested.update(unused.intersection(WORD.findall(path.read_text(encoding="utf-8"))))
    return {name: places[name] for name in sorted(tested - READ_ELSEWHERE.keys())}
