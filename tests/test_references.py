"""Docstrings and pages name files, names and errors that exist.

A path is found by its tail (`step/plan.py`), a dotted name by its root: a class of ours, a module of ours,
or a root that is listed here. A plain name in backticks occurs somewhere in the code, outside comments and
docstrings.
"""

import ast
import builtins
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from importlib import import_module
from typing import NamedTuple

import pytest

import sundog
from tests.test_layers import ROOT

SOURCES = ("actors", "runtime", "sim", "sundog", "tools")
PAGES = ("README.md", "CONTRIBUTING.md", "docs/**/*.md")
CHECKED_ENDINGS = ("py", "md", "cpp", "h", "js", "css")
"""Of files that are named without a folder. Others are files of models, runs and users, too."""
DATA_ENDINGS = frozenset(
    "csv cuh gz html ipynb json jsonl lock log npz parquet partial pdf safetensors svg toml txt".split()
)

FOREIGN_FOLDERS = ("1_Pooling", "HTTP", "Qwen", "dist", "llm-d.ai", "vllm", "workloads")
"""First parts of paths that lie elsewhere, or that are none."""
FOREIGN_FILES = ("json.py", "minimax_m2.py", "ranked.py", "runtime.py", "sim.py")
"""Files of vLLM, and of users."""
FOREIGN_ROOTS = ("jinja2", "nn", "np", "ranked", "vllm")
"""First parts of dotted names that no file of ours imports."""
VLLM = "Scheduler.update_from_output", "Request.arrival_time"
"""Members of vLLM's classes that have the name of one of ours."""
FIELDS = frozenset(
    """
    attention context_management dense emulation fleet gen_ai host output_config part reasoning response
    structured_outputs sundog tenant text thinking tokenizer ttft_s workload
    """.split()
)
"""First parts of the names of fields, in bodies, files and figures: their parts are words of the code."""
FOREIGN_WORDS = frozenset(
    """
    LM Predict admission_rejections request_params_n tool_runner bash_20250124 stabilizationWindowSeconds
    OTEL_TRACES_SAMPLER OTEL_EXPORTER_OTLP_HEADERS VLLM_NIXL_ABORT_REQUEST_TIMEOUT HTTP_PROXY NO_PROXY Enter
    _cbor mamba_cache_mode raw_logprobs _mamba_block_aligned_split _align_hybrid_block_size get_pp_indices
    determine_available_memory _set_cudagraph_sizes fused_experts fused_moe_kernel allgather_reducescatter
    random_sample apply_top_k_top_p use_one_mma_wg tile_size_fwd_sm90 num_splits_heuristic mlp_of LLLG
    CONNECT GPU_MODEL HF_HUB_OFFLINE OTEL_BSP_SCHEDULE_DELAY PARENT gemv traceparent tracestate patience_s
    FOLLOWED http_requests_total request_success_total spec_decode web_search_20250305 fp8_ds_mla tracing
    HF_ENDPOINT preemption_mode bfdot usdot sdot bfmmla smmla dp8tp2x2
    """.split()
)
"""Plain names of other programs, of instructions, and of what a name is made of."""
KNOWN_BASES = frozenset(
    "Protocol NamedTuple Generic StrEnum Enum IntEnum Exception ValueError Struct".split()
)
"""Bases of others whose members no text names by a class of ours."""
OBJECTS = {
    "config": ("EngineConfig",),
    "draft": ("Draft",),
    "fleet": ("Fleet",),
    "mailbox": ("Mailbox",),
    "plot": ("RunPlots", "SweepPlots", "PlanPlots", "Plot"),
    "request": ("Request", "Unanswered"),
    "scheduler": ("SchedulerConfig",),
    "view": ("View",),
}
"""Variables that texts name by themselves, and their classes."""


class Text(NamedTuple):
    """A docstring, or a line of a page."""

    file: str
    line: int
    text: str


class Names:
    """What the code defines, read from its source."""

    def __init__(self) -> None:
        self.modules: dict[str, set[str]] = defaultdict(set)
        """Top-level names and submodules, by the module's dotted name."""
        self.classes: dict[str, set[str]] = {}
        """Members, and those of bases, by the class's name."""
        self.bases: dict[str, list[str]] = {}
        self.libraries: set[str] = set()
        """Top-level modules of others that are imported."""
        self.foreign: set[str] = set()
        """Names that are imported from them."""
        self.words: set[str] = set()
        """Every identifier, and every word of a string that is no docstring."""
        self.words |= set(re.findall(r"\w+", (ROOT / "pyproject.toml").read_text(encoding="utf-8")))
        for file, tree in trees().items():
            self._read(file, tree)
        for module in list(self.modules):
            parent, _, name = module.rpartition(".")
            self.modules[parent].add(name)

    def _read(self, file: str, tree: ast.Module) -> None:
        is_docstring = {id(each) for each in docstrings(tree)}
        module = self.modules[module_of(file)]
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                self.classes[node.name] = members(node)
                self.bases[node.name] = [
                    ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases
                ]
            if isinstance(node, ast.Import):
                self.libraries |= {alias.name.split(".")[0] for alias in node.names} - {"sundog", "tools"}
            if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] not in ("sundog", "tools"):
                self.libraries.add(str(node.module).split(".")[0])
                self.foreign.update(alias.asname or alias.name for alias in node.names)
            if isinstance(node, ast.Constant):
                if isinstance(node.value, str) and id(node) not in is_docstring:
                    self.words.update(re.findall(r"\w+", node.value))
            else:
                self.words |= identifiers(node)
        for each in tree.body:
            module |= {name for node in ast.walk(each) for name in stored(node)}

    def has_member(self, name: str, member: str) -> bool:
        """Whether a class of ours, or a base of it, has a member; a foreign base may have any."""
        bases = self.bases[name]
        foreign = [base for base in bases if base not in self.classes and base not in KNOWN_BASES]
        return (
            member in self.classes[name]
            or bool(foreign)
            or any(self.has_member(base, member) for base in bases if base in self.classes)
        )


def stored(node: ast.AST) -> list[str]:
    """The names that a node binds."""
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.Name(id=name, ctx=ast.Store()):
            return [name]
        case ast.alias(name=name, asname=asname):
            return [(asname or name).split(".")[0]]
    return []


def members(node: ast.ClassDef) -> set[str]:
    """What a class binds in its body, and what its methods set on `self`; slots are among the words."""
    found = {name for each in node.body for name in stored(each)}
    for each in ast.walk(node):
        match each:
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                found.add(name)
    return found


def identifiers(node: ast.AST) -> set[str]:
    """The identifiers of one node, without its children's."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
            return {name}
        case ast.ImportFrom(module=str(module)):
            return set(module.split("."))
        case ast.alias(name=name, asname=asname):
            return {*name.split("."), asname or name}
    return set(stored(node))


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Those of modules, classes, functions and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for each in node.body:
                if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
                    yield each.value


@cache
def trees() -> dict[str, ast.Module]:
    files = sorted(path for folder in SOURCES for path in (ROOT / folder).rglob("*.py"))
    return {str(file.relative_to(ROOT)): ast.parse(file.read_text(encoding="utf-8")) for file in files}


@cache
def names() -> Names:
    return Names()


@cache
def texts() -> list[Text]:
    found = [
        Text(file, each.lineno, str(each.value))
        for file, tree in trees().items()
        for each in docstrings(tree)
    ]
    for page in sorted(path for pattern in PAGES for path in ROOT.glob(pattern)):
        whole = page.read_text(encoding="utf-8")
        prose = re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), whole, flags=re.M | re.S)
        lines = enumerate(prose.split("\n"), 1)
        found += [Text(str(page.relative_to(ROOT)), number, line) for number, line in lines]
    return found


@cache
def paths() -> frozenset[str]:
    """Every file and folder of the repository, and every tail of its path."""
    folders = (*SOURCES, "tests", "docs", "deploy", "traces", ".github")
    found = [path.relative_to(ROOT) for path in ROOT.glob("*")]
    found += [path.relative_to(ROOT) for folder in folders for path in (ROOT / folder).rglob("*")]
    return frozenset(
        "/".join(path.parts[i:])
        for path in found
        if "__pycache__" not in path.parts
        for i in range(len(path.parts))
    )


def module_of(file: str) -> str:
    name = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    return name if file.startswith(("sundog/", "tools/")) else f"sundog.{name}"


def is_path(word: str) -> bool:
    """Whether a file or folder has this path or ends in it; `*` stands for a part of a name."""
    tail = word.rstrip("/")
    return tail in paths() or ("*" in tail and any(fnmatch(path, tail) for path in paths()))


def is_name(word: str) -> bool:
    """Whether a dotted name exists; what lies below a member is not looked at."""
    known = names()
    root, *rest = word.split(".")
    if (
        root in FOREIGN_ROOTS
        or word in VLLM
        or rest[-1] in DATA_ENDINGS
        or any(part.isupper() for part in rest)
    ):
        return True
    if root in FIELDS and all(part in known.words for part in rest):
        return True
    if root in OBJECTS:
        return any(known.has_member(each, rest[0]) for each in OBJECTS[root])
    if root in known.classes:
        return known.has_member(root, rest[0])
    if root == "self":
        return any(rest[0] in each for each in known.classes.values())
    if root == "sundog" and rest[0] in sundog.__all__:
        return len(rest) == 1 or is_name(".".join(rest))
    for module in known.modules:
        if f".{module}".endswith(f".{root}") and is_in_module(module, rest):
            return True
    return root in known.foreign or (root in known.libraries and is_in_library(root, rest))


def is_in_module(module: str, parts: list[str]) -> bool:
    known = names().modules
    while parts and f"{module}.{parts[0]}" in known:
        module, parts = f"{module}.{parts[0]}", parts[1:]
    return not parts or (parts[0] in known[module] and (len(parts) < 2 or is_name(".".join(parts))))


def is_in_library(root: str, parts: list[str]) -> bool:
    """Whether the standard library has a name; other libraries are trusted, for torch is slow to import."""
    if root not in sys.stdlib_module_names:
        return True
    found: object = import_module(root)
    for part in parts:
        found = getattr(found, part, None)
    return found is not None


def is_error(name: str) -> bool:
    return (
        name in names().classes or name in names().foreign or isinstance(getattr(builtins, name, None), type)
    )


def exists(word: str) -> bool:
    """Whether a word in backticks is no name, or the name of what exists."""
    word = re.sub(r"\(.*\)$", "", word)
    first, slash, _ = word.partition("/")
    if slash and re.fullmatch(r"[\w*][\w*.-]*/[\w./*-]*", word):
        return first in FOREIGN_FOLDERS or first.isupper() or is_path(word)
    if re.fullmatch(rf"[\w*-]+\.({'|'.join(CHECKED_ENDINGS)})", word):
        return word in FOREIGN_FILES or is_path(word)
    if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", word):
        return is_name(word)
    if re.fullmatch(r"[A-Za-z_]\w*[A-Za-z0-9]", word):
        return word in names().words or word in FOREIGN_WORDS
    return True


def missing(text: str) -> list[str]:
    """The paths, names and errors of a text that do not exist."""
    found = [word for word in re.findall(r"`([^`\n]+)`", text) if not exists(word)]
    bare = re.sub(r"`[^`\n]*`", "", text)
    files = re.findall(r"(?<![\w/.:-])[\w-]+(?:/[\w-]+)*\.py\b", bare)
    found += [word for word in files if not is_path(word) and word not in FOREIGN_FILES]
    errors = re.findall(r"\b[Rr]aises (?:an? )?`?([A-Z]\w+)", text)
    for section in re.findall(r"^ *Raises:\n((?: +.*\n?)+)", text, re.M):
        errors += re.findall(r"^ *([A-Z]\w+): ", section, re.M)
    return found + [word for word in errors if not is_error(word)]


def test_what_docstrings_and_pages_name_exists() -> None:
    wrong = [f"{each.file}:{each.line}: {word}" for each in texts() for word in missing(each.text)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("as in `actors/core/step/planned.py`", "actors/core/step/planned.py"),
        ("see messages/clients.py for more", "messages/clients.py"),
        ("the blocks of `Request.block_map`", "Request.block_map"),
        ("made by `sundog.sim.clock.RealClock`", "sundog.sim.clock.RealClock"),
        ("as `time.perf_count()` says", "time.perf_count()"),
        ("what `num_of_everything` counts", "num_of_everything"),
        ("Raises Failed if it fails.", "Failed"),
        ("It raises a Failed.", "Failed"),
        (
            "Read a file.\n\n    Raises:\n        OSError: If there is none.\n        Failed: Else.\n",
            "Failed",
        ),
    ],
)
def test_what_does_not_exist_is_found(text: str, word: str) -> None:
    assert missing(text) == [word]


@pytest.mark.parametrize(
    "text",
    [
        "`actors/core/step/plan.py`, `step/plan.py`, `plan.py`, `docs/plans/`, `gpus/*.toml`, sim/clock.py",
        "`Request.request_id`, `sundog.sim.clock.VirtualClock`, `sundog.Policy.rank`, `time.monotonic()`",
        "Raises ConfigError if a field is wrong. It raises `OSError` if the file is none.",
    ],
)
def test_what_exists_is_not_found(text: str) -> None:
    assert missing(text) == []
