"""What would make two runs of a user's policy or router differ, found in its source before it runs.

Law: nothing in such a file asks another clock, another source of chance or another task, and what it
remembers is its declared memory, of which each replica has its own. What is looked for is what people
write; who hides it from this search deceives nobody else.
"""

import ast
from collections.abc import Iterator

CHANCE = ("random", "secrets", "time", "datetime", "uuid", "numpy.random", "os.urandom", "os.getrandom")
"""Their answers differ from run to run."""
TASKS = ("threading", "_thread", "multiprocessing", "concurrent", "subprocess", "socket", "asyncio", "trio")
OF_A_PROCESS = {"id": "differs from process to process", "hash": "of a text differs from process to process"}
PURE = ("rank", "rank_key", "urgency", "quota", "victim")
"""Methods of a policy that may not change its memory."""
CHANGES = frozenset(
    "add append appendleft clear discard extend extendleft insert pop popitem popleft remove setdefault"
    " sort update".split()
)
"""Methods by which dicts, lists, sets and the like change."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def unrepeatable(tree: ast.Module, instead: str, remembers: str) -> str | None:
    """Line and reason of the first thing that would make runs differ; None: nothing was found."""
    for node in ast.walk(tree):
        for name in _used(node):
            if _is_in(name, CHANCE):
                return f"line {_line(node)}, uses {name}: {instead}"
            if _is_in(name, TASKS):
                return f"line {_line(node)}, uses {name}: it must answer at once, from what it is shown"
        match node:
            case ast.Call(func=ast.Name(id=("id" | "hash") as name)):
                return f"line {_line(node)}, uses {name}(), which {OF_A_PROCESS[name]}: {instead}"
            case ast.Global():
                return f"line {_line(node)}, says global {', '.join(node.names)}: {remembers}"
    return _kept_state(tree, remembers)


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def _is_in(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _used(node: ast.AST) -> list[str]:
    """The modules, and the parts of modules, that a node names."""
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            return [f"{node.module}.{alias.name}" for alias in node.names] if not node.level else []
        case ast.Attribute(value=ast.Name(id=("np" | "numpy")), attr="random"):
            return ["numpy.random"]
        case ast.Attribute(value=ast.Name(id="os"), attr=attr):
            return [f"os.{attr}"]
        case ast.Call(func=ast.Name(id="__import__")):
            return [ast.unparse(argument).strip("'\"") for argument in node.args[:1]]
    return []


# --- what is kept from call to call ---------------------------------------------------------------


def _kept_state(tree: ast.Module, remembers: str) -> str | None:
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    plain = [node for node in tree.body if not isinstance(node, Function | ast.ClassDef)]
    shared = classes | {name for node in plain for name in _bound(node)}
    for function in ast.walk(tree):
        if not isinstance(function, Function) or function.name in ("__init__", "__post_init__"):
            continue
        own = set(_bound(function))
        for changed in _changed(function):
            root, path = _root(changed)
            where = f"line {_line(changed)}, changes {ast.unparse(changed)} in {function.name}"
            if root == "self" or (root in shared and root not in own):
                return f"{where}: {remembers}"
            if function.name in PURE and path[:1] == ["memory"]:
                return (
                    f"{where}: only refuse, admitted and finished may, for how often others are called"
                    " is not promised"
                )
    return None


def _bound(node: ast.AST) -> Iterator[str]:
    """The names that are bound somewhere below this node."""
    for below in ast.walk(node):
        if isinstance(below, ast.Name) and isinstance(below.ctx, ast.Store):
            yield below.id
        elif isinstance(below, ast.arg):
            yield below.arg


def _changed(function: Function) -> Iterator[ast.expr]:
    """What the function changes without binding a name: `a[k] = v`, `a.b += 1`, `del a[k]`, `a.append(v)`.

    `self.x = v` is left to the run, which refuses it by name.
    """
    for node in ast.walk(function):
        match node:
            case ast.Subscript(value=changed, ctx=(ast.Store() | ast.Del())):
                yield changed
            case ast.Attribute(value=ast.Name(id="self")):
                pass
            case ast.Attribute(ctx=(ast.Store() | ast.Del())):
                yield node
            case ast.Call(func=ast.Attribute(value=changed, attr=attr)):
                if attr in CHANGES:
                    yield changed


def _root(node: ast.expr) -> tuple[str, list[str]]:
    """The name that an expression begins with, and the attributes that follow it."""
    path: list[str] = []
    while True:
        match node:
            case ast.Attribute(value=inner, attr=attr):
                node, path = inner, [attr, *path]
            case ast.Subscript(value=inner):
                node = inner
            case ast.Call(func=ast.Name(id="type"), args=[ast.Name(id=name)]):
                return name, path
            case ast.Call(func=ast.Attribute(attr=("get" | "setdefault" | "values")) as inner):
                node = inner
            case ast.Name(id=name):
                return name, path
            case _:
                return "", path
