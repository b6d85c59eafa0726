"""Import rules between layers, checked in the source and in a fresh interpreter."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sundog.cli import COMMANDS

ROOT = Path(__file__).parent.parent
OURS = {"actors", "runtime", "sim", "sundog"}
HTTP = {"h2", "httptools", "httpx", "hypercorn", "quart", "quart_trio", "werkzeug", "wsproto"}
TORCH = {"safetensors", "torch", "transformers"}
TRACED = {"actors/api/exposition/spans.py"}
STANDARD = set(sys.stdlib_module_names)


def sources(folder: str) -> list[str]:
    """Python files below a folder, relative to the root."""
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.py"))


def imports(file: str) -> Iterator[tuple[str, bool]]:
    """Every module that a file imports anywhere in it, and whether when it is itself imported."""
    tree = ast.parse((ROOT / file).read_text(), file)
    at_once = set(_run_at_import(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node in at_once
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively: say the whole name"
            yield node.module or "", node in at_once


def _run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when the module does: no function's body, nothing that is for type checkers."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _run_at_import(child)


def top_of(module: str) -> str:
    """The package that a module is of; of ours the folder, for `sundog.sim.clock` lies in `sim`."""
    first, _, rest = module.partition(".")
    inside = rest.partition(".")[0]
    return inside if first == "sundog" and inside in OURS else first


def allowed(file: str, module: str) -> bool:
    """The import table."""
    top = top_of(module)
    if top in STANDARD:
        return True
    if file.startswith("actors/core/"):
        return module == "sundog.actors.core" or module.startswith("sundog.actors.core.")
    if file.startswith("actors/"):
        if file in TRACED and top == "opentelemetry":
            return True
        if file.startswith(("actors/api/", "actors/http/")):
            return top in {"actors", "jiter", "prometheus_client", "trio", "pydantic"} | HTTP
        if file == "actors/block_hash.py":
            return top in {"actors", "cbor2", "xxhash"}
        return top in {"actors", "trio", "mypy_extensions"}
    if file.startswith("runtime/"):
        served = HTTP if file == "runtime/serve.py" else set()
        if file.startswith("runtime/load/"):
            served = {"httpx"}
        return top not in (OURS | HTTP) - {"actors", "runtime"} - served
    if file.startswith("sim/"):
        forbidden = (OURS | HTTP | TORCH) - {"actors", "sim"}
        return top not in forbidden or (top in HTTP and file.startswith("sim/http"))
    raise AssertionError(file)


@pytest.mark.parametrize("folder", ["actors", "runtime", "sim"])
def test_each_layer_imports_only_what_it_may(folder: str) -> None:
    """Inside functions too: actors neither world, no world the other, the simulator never torch."""
    wrong = [
        f"{file} imports {module}"
        for file in sources(folder)
        for module, _ in imports(file)
        if not allowed(file, module)
    ]
    assert not wrong, "\n".join(wrong)


def test_only_one_room_touches_what_carries_http() -> None:
    """Outside it `quart` is imported by its public names, and no class of its own is derived from one."""
    for file in sources("actors"):
        if file.startswith("actors/http/"):
            continue
        names = {module for module, _ in imports(file) if top_of(module) in HTTP}
        assert names <= {"quart", "werkzeug.exceptions"}, f"{file} imports {sorted(names)}"
        tree = ast.parse((ROOT / file).read_text(), file)
        quart = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == "quart"
            for alias in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                assert not quart & {ast.unparse(base) for base in node.bases}, f"{file}: {node.name}"


def test_nothing_private_of_what_carries_http_is_touched() -> None:
    """No name with an underscore of another object.

    But for Werkzeug's own way behind its proxies, and for Hypercorn's loop of reading, whose end says that
    the client has left (the tests of clients that leave see the day on which it has another name).
    """
    known = {"_get_current_object", "_read_data"}
    for file in [*sources("actors/http"), "actors/api/requests.py"]:
        for node in ast.walk(ast.parse((ROOT / file).read_text(), file)):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and node.attr[1] != "_":
                of_our_own = isinstance(node.value, ast.Name) and node.value.id == "self"
                assert of_our_own or node.attr in known, f"{file}: {ast.unparse(node)}"


def test_only_the_http_surface_knows_how_http_is_spoken() -> None:
    """Whoever serves calls `serve_http`, which sundog.actors.api exports."""
    for folder in ("actors", "runtime", "sim", "sundog"):
        for file in sources(folder):
            known = any(module.startswith("sundog.actors.http") for module, _ in imports(file))
            assert not known or file.startswith(("actors/api/", "actors/http/")), file


def test_http_is_parsed_by_nothing_of_ours() -> None:
    """Hypercorn parses what is served, and httpx what is asked for: no file here imports a parser itself."""
    for folder in sorted(OURS):
        for file in sources(folder):
            parsers = {top_of(module) for module, _ in imports(file)} & {"h11", "h2", "httptools", "wsproto"}
            assert not parsers, f"{file} imports {sorted(parsers)}"


CHARTER = {
    "torch": "runtime/model/",
    "transformers": "runtime/checkpoint/",
    "trio": "actors/kernel/",
    "hypercorn": "actors/http/",
    "quart": "actors/api/",
    "quart_trio": "actors/http/",
    "httpx": "runtime/load/",
    "pydantic": "actors/api/bodies/",
}
"""The packages of the charter, quart-trio beside Quart, and the room in which each does its job."""


@pytest.mark.parametrize("package", CHARTER)
def test_every_package_of_the_charter_is_at_work_in_its_room(package: str) -> None:
    """When its room is imported or used, not for type checkers alone."""
    users = [
        file
        for file in sources(CHARTER[package])
        for node in _that_runs(ast.parse((ROOT / file).read_text(), file))
        if package in _roots(node)
    ]
    assert users, package


def _that_runs(tree: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(tree):
        if not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            yield child
            yield from _that_runs(child)


def _roots(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name.split(".")[0] for alias in node.names}
    return {(node.module or "").split(".")[0]} if isinstance(node, ast.ImportFrom) else set()


def test_the_worlds_never_import_each_other() -> None:
    """Nor the command line."""
    for folder, others in (("runtime", {"sim", "sundog"}), ("sim", {"runtime", "sundog"})):
        for file in sources(folder):
            tops = {top_of(module) for module, _ in imports(file)}
            assert not tops & others, file


def test_numpy_is_for_the_worlds_only() -> None:
    """What decides and what waits needs no arrays."""
    for file in sources("actors"):
        assert "numpy" not in {top_of(module) for module, _ in imports(file)}, file


def test_the_command_line_alone_knows_click() -> None:
    """Nothing else imports it, so that the rest can be used without a command line."""
    users = {file.split("/")[0] for folder in OURS for file in sources(folder) if "click" in _tops(file)}
    assert users == {"sundog"}


def _tops(file: str) -> set[str]:
    return {top_of(module) for module, _ in imports(file)}


def test_every_module_says_what_it_is_for() -> None:
    """In a docstring, before anything else."""
    for folder in OURS:
        for file in sources(folder):
            assert ast.get_docstring(ast.parse((ROOT / file).read_text())), file


def modules_after_importing(*names: str) -> set[str]:
    """Top-level modules, and folders of ours, that a fresh interpreter has loaded after these imports."""
    code = (
        "import importlib, json, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(map(top_of, json.loads(done.stdout)))


def modules_of(folder: str) -> list[str]:
    inside = "" if folder == "sundog" else "sundog."
    names = [inside + file.removesuffix(".py").replace("/", ".") for file in sources(folder)]
    return [name.removesuffix(".__init__") for name in names if not name.endswith("__main__")]


@pytest.mark.plain
def test_the_core_needs_nothing_but_the_standard_library() -> None:
    """In a fresh interpreter: whatever else is installed stays unloaded."""
    loaded = modules_after_importing(*modules_of("actors/core"))
    ours = loaded & OURS
    assert ours == {"actors", "sundog"}
    bare = modules_after_importing("json")
    assert loaded - bare - STANDARD <= {"actors", "sundog"}


def test_the_graph_needs_neither_world_nor_http_nor_torch() -> None:
    """All of actors/ but its HTTP surface."""
    names = [
        name
        for name in modules_of("actors")
        if not name.startswith(("sundog.actors.api", "sundog.actors.http"))
    ]
    loaded = modules_after_importing(*names)
    assert not loaded & ({"runtime", "sim", "numpy", "pydantic", "click"} | HTTP | TORCH)


def test_simulating_never_imports_torch() -> None:
    """All of sim/, and the command line with it."""
    loaded = modules_after_importing("sundog.cli", *modules_of("sim"))
    assert not loaded & ({"runtime"} | TORCH)


def test_the_command_line_alone_loads_no_world() -> None:
    """So that `--help` is quick: neither the list of commands nor any command loads one."""
    heavy = {"runtime", "sim", "numpy", "pydantic", "rich", "trio"} | HTTP | TORCH
    commands = [f"sundog.commands.{name}" for name in COMMANDS]
    assert not modules_after_importing("sundog.cli", *commands) & heavy
