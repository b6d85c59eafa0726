"""Records with written-out constructors behave like plain dataclasses."""

import copy
import dataclasses
import pickle
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from sundog.compiled_records import bases_in, plain_names, stage, with_constructors, with_isinstance
from sundog.fast import MODULES, ROOT

SOURCE = '''
from dataclasses import dataclass, field

COUNT = 3


@dataclass(frozen=True, slots=True)
class Frozen:
    """A record with a forward reference and every kind of default."""

    a: int
    b: "Plain | None" = None
    c: tuple[int, ...] = (1, COUNT)
    d: list[int] | tuple[int, ...] = field(default_factory=list)
    e: int = field(default=7, repr=False)


@dataclass(slots=True)
class Plain:
    x: float
    total: float = field(init=False)
    seen: dict[str, int] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        self.total = 2 * self.x


@dataclass
class Base:
    x: int = 0


@dataclass
class Derived(Base):
    y: int = 1


@dataclass(slots=True)
class OfItsOwn:
    x: int

    def __init__(self, x: int) -> None:
        self.x = x + 1
'''


def made(source: str, name: str) -> Any:
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(source, module.__dict__)
    return module


@pytest.fixture
def both() -> tuple[Any, Any]:
    """The module of dataclasses, and that with their constructors written out.

    Plain Python refuses the assignments in a frozen record: here it is thawed.
    """
    written = with_constructors(SOURCE, bases_in(SOURCE))
    assert written.count("def __init__") == 3 and written.count("def __reduce__") == 1
    thawed = written.replace("frozen=True, ", "")
    return made(SOURCE, "records_as_read"), made(thawed, "records_as_compiled")


def test_a_written_constructor_makes_the_same_record(both: tuple[Any, Any]) -> None:
    """By position and by name, with all defaults or none; each default list is its own."""
    for call in (
        lambda m: m.Frozen(1),
        lambda m: m.Frozen(1, m.Plain(2.0), (5,), [6], 8),
        lambda m: m.Frozen(a=1, d=[2]),
        lambda m: m.Plain(1.5),
        lambda m: m.Plain(x=1.5, seen={"a": 1}),
        lambda m: m.Derived(1, 2),
        lambda m: m.OfItsOwn(1),
        lambda m: dataclasses.replace(m.Frozen(1), a=4),
    ):
        read, written = (repr(call(module)) for module in both)
        assert read == written
    written = both[1]
    assert written.Frozen(1).d is not written.Frozen(1).d


def test_written_records_compare_hash_match_and_copy_as_the_source_says(both: tuple[Any, Any]) -> None:
    for module in both:
        one, other = module.Frozen(1, d=()), module.Frozen(1, d=())
        assert one == other and hash(one) == hash(other) and one != module.Frozen(2, d=())
        assert module.Frozen.__match_args__ == ("a", "b", "c", "d", "e")
        assert module.Plain(1.0, {"a": 1}) == module.Plain(1.0, {})
        with pytest.raises(TypeError, match="unhashable"):
            hash(module.Plain(1.0))
        assert copy.copy(one) == one and pickle.loads(pickle.dumps(one)) == one
        assert dataclasses.asdict(one) == {"a": 1, "b": None, "c": (1, 3), "d": (), "e": 7}


def test_a_wrong_call_is_refused_as_before(both: tuple[Any, Any]) -> None:
    for module in both:
        for wrong in (lambda m: m.Frozen(), lambda m: m.Frozen(1, z=2), lambda m: m.Plain(1.0, total=2.0)):
            with pytest.raises(TypeError):
                wrong(module)


def test_records_of_plain_values_are_known_by_their_types() -> None:
    """Across files, through names of types and quoted ones; not what may lead back to the record."""
    sources = [
        "import enum\nWords = Literal['a', 'Actor'] | tuple[str, ...]\nclass Kind(enum.Enum):\n    A = 1\n",
        "class Pair(NamedTuple):\n    left: int\n    right: 'Words'\n",
        "@dataclass\nclass Plain:\n    pair: Pair | None\n    kind: Kind\n    more: list['Plain']\n",
        "@dataclass\nclass Waits:\n    reply: Reply[int]\n",
        "@dataclass\nclass Inside:\n    waits: tuple[Waits, ...]\n",
        "class Own:\n    x: int\n",
        "@dataclass\nclass Owns:\n    own: Own\n",
        "@dataclass\nclass Calls:\n    call: Callable[[int], None]\n",
    ]
    assert plain_names(sources) == {"Words", "Kind", "Pair", "Plain"}
    assert "Plain" not in plain_names([*sources, "@dataclass\nclass Plain:\n    x: object\n"])


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_every_compiled_record_can_be_staged(tmp_path: Path) -> None:
    """The staged tree parses, and holds the source of every module, changed in compiled ones alone.

    But for the list of public names, which imports everything for type checkers.
    """
    stage(ROOT, tmp_path, MODULES)
    changed = 0
    names = tmp_path / "sundog" / "__init__.py"
    assert not names.read_text(encoding="utf-8")
    for path in {*tmp_path.rglob("*.py")} - {names}:
        name = str(path.relative_to(tmp_path))
        text = path.read_text(encoding="utf-8")
        compile(text, name, "exec")
        if text != (ROOT / name).read_text(encoding="utf-8"):
            assert name in MODULES, name
            changed += text.count("def __init__") - (ROOT / name).read_text(encoding="utf-8").count(
                "def __init__"
            )
    assert changed > 50, "records on the path of a step are among them"


@pytest.mark.long("it compiles a module; the tests above read the same source plain")
def test_a_compiled_record_is_made_by_c_and_stays_frozen(tmp_path: Path) -> None:
    """Copies, pickles and refusals are those of the source; the constructor is compiled."""
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        pytest.skip("there is no C compiler")
    written = with_constructors(SOURCE, bases_in(SOURCE), plain_names([SOURCE]))
    assert written.count("acyclic=True") == 2
    (tmp_path / "records.py").write_text(written, encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "mypyc", "records.py"], cwd=tmp_path, check=True, capture_output=True
    )
    asked = """
import copy, dataclasses, gc, pickle, records
assert not records.__file__.endswith(".py")
one = records.Frozen(1, records.Plain(2.0), (5,), [6])
assert not hasattr(records.Frozen.__init__, "__code__"), "compiled"
assert not gc.is_tracked(one) and gc.is_tracked(records.Derived(1, 2))
for number in range(1000):  # one that was freed is made again, with nothing of what it was
    again = records.Frozen(number)
    assert again == records.Frozen(number, None, (1, 3), []) and again.d is not records.Frozen(number).d
    again.d.append(number)
try:
    one.a = 3
except dataclasses.FrozenInstanceError:
    pass
else:
    raise AssertionError("assigned")
assert copy.copy(one) == one and pickle.loads(pickle.dumps(records.Frozen(1))) == records.Frozen(1)
assert dataclasses.replace(one, a=4).a == 4 and hash(records.Frozen(1, d=())) == hash(records.Frozen(1, d=()))
print(repr(one))
"""
    compiled = subprocess.run(
        [sys.executable, "-c", asked], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert compiled.stdout == ("Frozen(a=1, b=Plain(x=2.0, total=4.0, seen={}), c=(5,), d=[6])\n")


MATCHED = """
def kind(message: int | str | bytes | float | None, is_short: bool = False) -> str:
    match message:
        case bool() | int():
            return "number"
        case str() if is_short or not message:  # with a condition
            return "short"
        case str():
            match message:
                case "a":
                    return "a"
                case _:
                    return "text"
        case bytes():
            return "bytes"
        case _:
            return "other"


def parts(pair: object) -> object:
    match pair:
        case tuple((first, _)):
            return first
        case _:
            return None


def named(value: object) -> object:
    match value:
        case int():
            return 0
        case other:
            return other
"""


def test_a_match_by_class_alone_is_staged_as_isinstance_and_decides_alike() -> None:
    """A match that looks into values, or names the rest, stays as it is."""
    staged = with_isinstance(MATCHED)
    assert (
        staged.count("match ") == 3
        and "elif isinstance(message, str) and (is_short or not message):" in staged
    )
    one: dict[str, Any] = {}
    other: dict[str, Any] = {}
    exec(MATCHED, one)
    exec(staged, other)
    for value in (True, 3, "", "a", "b", b"c", 1.5, None):
        for is_short in (False, True):
            assert other["kind"](value, is_short) == one["kind"](value, is_short)
    assert [other["parts"]((1, 2)), other["named"]("x"), other["named"](1)] == [1, "x", 0]


def test_handlers_of_messages_are_staged_without_a_match() -> None:
    """They are asked for each message, with the most frequent classes first."""
    for name in ("engine/scheduler", "engine/executor", "router/router", "front/async_llm"):
        source = (ROOT / f"sundog/actors/{name}.py").read_text(encoding="utf-8")
        assert "match message:" in source and "match message:" not in with_isinstance(source), name
