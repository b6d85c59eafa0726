"""Constructors of our classes take at most four positional arguments; others are named."""

import ast
from collections.abc import Iterator

from tests.test_layers import ROOT

SOURCES = ("actors", "runtime", "sim", "sundog")
MOST = 4


def trees() -> dict[str, ast.Module]:
    files = sorted(path for folder in SOURCES for path in (ROOT / folder).rglob("*.py"))
    return {str(file.relative_to(ROOT)): ast.parse(file.read_text(encoding="utf-8")) for file in files}


def classes(tree: ast.Module) -> set[str]:
    """The classes of a file, but for C structures: their fields are positions."""
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and not any(ast.unparse(base).endswith("Structure") for base in node.bases)
    }


def num_positional(call: ast.Call) -> int:
    """The positional arguments; a literal tuple that is unpacked counts as its items."""
    num = 0
    for each in call.args:
        is_unpacked = isinstance(each, ast.Starred) and isinstance(each.value, ast.Tuple | ast.List)
        num += len(each.value.elts) if is_unpacked else 1
    return num


def calls(tree: ast.Module, ours: set[str]) -> Iterator[tuple[int, str]]:
    """The line and the class of each call with too many positional arguments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and num_positional(node) > MOST:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
            if name in ours:
                yield node.lineno, name


def test_no_call_of_a_class_has_more_than_four_positional_arguments() -> None:
    """A reader of `Plan(a, b, c, d, e)` must look up the fifth."""
    found = trees()
    ours = set().union(*map(classes, found.values()))
    wrong = [f"{file}:{line}: {name}" for file, tree in found.items() for line, name in calls(tree, ours)]
    assert not wrong, "\n".join(wrong)


def test_such_a_call_would_be_found() -> None:
    tree = ast.parse(
        "Plan(1, 2, 3, 4)\nPlan(1, 2, *(3, 4), 5)\nx.Plan(1, 2, 3, 4, 5, six=6)\nf(1, 2, 3, 4, 5)"
    )
    assert [line for line, _ in calls(tree, {"Plan"})] == [2, 3]
