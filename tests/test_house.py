"""Structure of the source: no import cycles, layers in order, a unique name for each class."""

import ast
import re
import subprocess
from collections import Counter
from functools import cache

import pytest

from tests.test_layers import ROOT
from tools.unused import used, used_by_tests_alone

SOURCES = ("actors", "runtime", "sim", "sundog")

FLOORS = (
    "sundog.sim.files",
    "sundog.sim.trace",
    "sundog.sim.workload",
    "sundog.sim.hardware",
    "sundog.sim.cost",
    "sundog.sim.record",
    "sundog.sim",
    "sundog.sim.fleet",
    "sundog.sim.emulation",
    "sundog.sim.schedule",
    "sundog.sim.figures",
    "sundog.sim.deployment",
    "sundog.sim.validation",
    "sundog.sim.explain",
    "sundog.sim.show",
)
"""From the ground up (docs/house.md): a room imports from itself and from those below."""


def python_files(*folders: str) -> list[str]:
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return sorted(str(path.relative_to(ROOT)) for path in found)


TOP = (
    "actors deploy docs runtime sim sundog tests tools traces .ci .dockerignore .gitignore CHANGELOG.md"
    " CONTRIBUTING.md LICENSE Makefile README.md pyproject.toml requirements.lock setup.py"
)
"""What lies at the top level; other files there are what a command wrote."""


def test_nothing_that_a_command_wrote_is_kept() -> None:
    """`sundog report` writes into the current folder, with the path of a trace."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    if not listed:
        pytest.skip("this is no checkout of git")
    assert {name.partition("/")[0] for name in listed} == set(TOP.split())


def test_a_class_has_a_name_of_its_own() -> None:
    """Two classes of one name make a reader ask which is meant."""
    names: Counter[str] = Counter()
    for file in python_files(*SOURCES):
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        names.update(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    shared = sorted(name for name, count in names.items() if count > 1)
    assert not shared, f"more than one class is called {', '.join(shared)}"


# --- who imports whom ----------------------------------------------------------------------------


def module_of(file: str) -> str:
    name = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    return name if file.startswith("sundog/") else f"sundog.{name}"


@cache
def import_graph() -> dict[str, set[str]]:
    """Each module of ours with those of ours that it imports, inside functions too."""
    files = {module_of(file): file for file in python_files(*SOURCES)}
    graph: dict[str, set[str]] = {}
    for module, file in files.items():
        graph[module] = set()
        for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                whole = {f"{node.module}.{alias.name}" for alias in node.names}
                names = {name if name in files else str(node.module) for name in whole}
            else:
                continue
            graph[module] |= {name for name in names if name in files and name != module}
    return graph


def rooms(graph: dict[str, set[str]]) -> dict[str, dict[str, set[str]]]:
    """For each package how its children, modules and rooms alike, import each other."""

    def path(module: str) -> list[str]:
        is_package = (ROOT / module.replace(".", "/")).is_dir()
        return [*module.split("."), *(["__init__"] if is_package else [])]

    packages: dict[str, dict[str, set[str]]] = {}
    for module, imported in graph.items():
        for other in imported:
            ours, theirs = path(module), path(other)
            depth = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
            children = packages.setdefault(".".join(ours[:depth]), {})
            children.setdefault(ours[depth], set()).add(theirs[depth])
    return packages


def circle(children: dict[str, set[str]]) -> list[str]:
    """Some children that import each other in a circle; empty if there is none."""
    left = {name: set(others) for name, others in children.items()}
    while ends := [name for name in left if not left[name] & left.keys()]:
        for name in ends:
            del left[name]
    return sorted(left)


def test_nothing_is_imported_in_a_circle() -> None:
    """Neither modules nor rooms: the children of every package form a ladder."""
    found = {package: circle(children) for package, children in rooms(import_graph()).items()}
    assert not {package: names for package, names in found.items() if names}


def test_a_circle_would_be_found() -> None:
    """Between two modules of different rooms, which no module imports in a circle by itself."""
    graph = {
        "sundog.sim.cost.work": {"sundog.sim.trace.read"},
        "sundog.sim.trace.lines": {"sundog.sim.cost.composed"},
    }
    assert circle(rooms(graph)["sundog.sim"]) == ["cost", "trace"]
    graph["sundog.sim.trace.lines"] = set()
    assert circle(rooms(graph)["sundog.sim"]) == []


@pytest.mark.parametrize("floor", range(len(FLOORS)))
def test_the_simulator_is_built_from_the_ground_up(floor: int) -> None:
    """What goes in, what a run leaves, the world, what follows from it, what people see."""
    allowed = FLOORS[: floor + 1]
    wrong = [
        f"{module} imports {other}"
        for module, imported in import_graph().items()
        if room_of(module) == FLOORS[floor]
        for other in imported
        if other.startswith("sundog.sim.") and room_of(other) not in allowed
    ]
    assert not wrong, "\n".join(wrong)


def room_of(module: str) -> str:
    """`sundog.sim.trace` of `sundog.sim.trace.read`; those of `sim` itself are the room `sundog.sim`."""
    room = module.split(".")[:3]
    return ".".join(room if ROOT.joinpath(*room).is_dir() else room[:2])


def test_every_room_has_its_floor() -> None:
    """A new one is put where it belongs, in the list and in docs/house.md."""
    found = {room_of(module_of(file)) for file in python_files("sim")}
    assert found == set(FLOORS)
    text = (ROOT / "docs/house.md").read_text(encoding="utf-8")
    names = [path.parent.name for folder in SOURCES for path in (ROOT / folder).glob("*/__init__.py")]
    missing = [name for name in names if f"{name}/" not in text]
    assert not missing, f"docs/house.md does not name {', '.join(missing)}"


# --- what nobody needs ---------------------------------------------------------------------------


def test_no_name_is_there_for_tests_alone() -> None:
    """What the product does not read is not kept because a test reads it: tests have helpers of their own."""
    found = used_by_tests_alone()
    assert not found, f"only tests use {found}: move it to them, or leave it out"


def test_a_name_that_only_a_definition_or_a_docstring_has_is_not_used() -> None:
    text = """
class Pool:
    size: int = 0
    def take(self, rest):
        'Take from `spare` as `give` does.'
        return self.take_all(rest, limit=2, field=getattr(self, "grown"))
"""
    assert set(used(ast.parse(text))) == {
        *("int", "self", "take_all", "rest", "limit", "field", "getattr", "grown")
    }


NAMES_THAT_BEGIN = ("vLLM", "round-robin if", "load-curve:", "\0: \0")
"""What a sentence may begin with although it is in lower case: names, and a fleet's, as 2 x h100."""


def lower_case_sentences(source: str) -> list[str]:
    """Return the texts of a module, without docstrings, of which a further sentence begins in lower case.

    What an f-string inserts after a full stop may be a clause, as an error's text is.
    """
    tree = ast.parse(source)
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    silent |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    found = []
    for node in ast.walk(tree):
        text = ""
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(v.value) if isinstance(v, ast.Constant) else "\0" for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            text = node.value
        if "\n" in text:  # a page, a template or a script
            continue
        begins = (match.end() for match in re.finditer(r"[a-z)\0]\. (?=[a-z\0])", text))
        if any(not text.startswith(NAMES_THAT_BEGIN, at) for at in begins):
            found.append(text)
    return found


def test_each_sentence_of_a_message_begins_with_a_capital() -> None:
    """A line that ends a command may go on after a full stop, and then with another sentence."""
    assert lower_case_sentences('f"no model is called {name}. {error}"') == ["no model is called \0. \0"]
    assert lower_case_sentences('x = "it is so. leave it"') == ["it is so. leave it"]
    assert lower_case_sentences('x = "it is so. Leave it"') == []
    found = {file: lower_case_sentences((ROOT / file).read_text()) for file in python_files(*SOURCES)}
    assert {file: texts for file, texts in found.items() if texts} == {}
