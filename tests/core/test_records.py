"""Records behave as dataclasses: each law is also checked on the standard library's."""

import copy
import dataclasses
import inspect
import pickle
import sys
import types
from typing import Any

import pytest

SOURCE = '''
from dataclasses import InitVar, field
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Frozen:
    """A record with every kind of default."""

    a: int
    b: "Plain | None" = None
    c: tuple[int, ...] = (1, 2)
    d: list[int] | tuple[int, ...] = field(default_factory=list)
    e: int = field(default=7, repr=False)
    LIMIT: ClassVar[int] = 3


@dataclass(slots=True)
class Plain:
    x: float
    total: float = field(init=False)
    seen: dict[str, int] = field(default_factory=dict, compare=False)
    kept: list[int] = field(init=False, default_factory=list)
    first: int = field(init=False, default=1)

    def __post_init__(self) -> None:
        self.total = 2 * self.x


@dataclass(frozen=True, slots=True, kw_only=True)
class ByName:
    x: int = 1
    y: int


@dataclass(frozen=True)
class WithDict:
    self: int

    @property
    def double(self):
        return 2 * self.self


class Derived(WithDict):
    """It is no record, so its own attributes may be assigned."""


@dataclass(frozen=True)
class Further(WithDict):
    y: int = 2


@dataclass
class OfItsOwn:
    x: int

    def __init__(self, x): self.x = x + 1
    def __repr__(self): return "own"
    def __eq__(self, other): return True
    def __hash__(self): return 5


@dataclass(frozen=True)
class OwnEquality:
    x: int

    def __eq__(self, other): return True


@dataclass(frozen=True, eq=False)
class ByIdentity:
    x: int


@dataclass(frozen=True, slots=True)
class Empty:
    pass


@dataclass(frozen=True, order=True)
class Ordered:
    x: int


@dataclass
class Begun:
    x: InitVar[int]
    y: int = 0

    def __post_init__(self, x): self.y = x
'''


def made(import_line: str, name: str) -> Any:
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(f"{import_line}\n{SOURCE}", module.__dict__)
    return module


@pytest.fixture(params=["dataclasses", "sundog.actors.core.records"])
def module(request: pytest.FixtureRequest) -> Any:
    return made(f"from {request.param} import dataclass", f"made_by_{request.param.replace('.', '_')}")


def test_constructors_take_what_the_fields_say(module: Any) -> None:
    one = module.Frozen(1, d=[6])
    assert (one.a, one.b, one.c, one.d, one.e, one.LIMIT) == (1, None, (1, 2), [6], 7, 3)
    assert module.Frozen(1).d == [] and module.Frozen(1).d is not module.Frozen(1).d
    plain = module.Plain(1.5)
    assert (plain.x, plain.total, plain.seen, plain.kept, plain.first) == (1.5, 3.0, {}, [], 1)
    assert module.ByName(y=4).x == 1 and module.WithDict(3).double == 6 and module.OfItsOwn(1).x == 2
    assert module.Begun(3).y == 3
    for wrong in (
        lambda: module.Frozen(),
        lambda: module.Frozen(1, z=2),
        lambda: module.Plain(1.0, total=2.0),
        lambda: module.ByName(1, 2),
        lambda: module.Empty(1),
    ):
        with pytest.raises(TypeError):
            wrong()
    assert list(inspect.signature(module.Frozen).parameters) == ["a", "b", "c", "d", "e"]
    assert module.Frozen.__init__.__qualname__ == "Frozen.__init__"


def test_records_are_shown_compared_and_hashed_by_their_fields(module: Any) -> None:
    one, equal = module.Frozen(1, d=()), module.Frozen(1, d=())
    assert one == equal and hash(one) == hash(equal) == hash((1, None, (1, 2), (), 7))
    assert one != module.Frozen(2, d=()) and one != (1, None, (1, 2), (), 7)
    assert repr(one) == "Frozen(a=1, b=None, c=(1, 2), d=())"
    assert module.Plain(1.0, {"a": 1}) == module.Plain(1.0) and module.Plain(1.0) != module.Plain(2.0)
    with pytest.raises(TypeError, match="unhashable"):
        hash(module.Plain(1.0))
    around = module.Plain(1.0)
    around.kept.append(around)
    assert repr(around) == "Plain(x=1.0, total=2.0, seen={}, kept=[...], first=1)"
    own = module.OfItsOwn(1)
    assert (repr(own), own == 3, hash(own)) == ("own", True, 5)
    assert hash(module.OwnEquality(1)) == hash((1,)) and module.OwnEquality(1) == 3
    assert (
        module.ByIdentity(1) != module.ByIdentity(1)
        and len({module.ByIdentity(1), module.ByIdentity(1)}) == 2
    )
    assert (
        module.Empty() == module.Empty()
        and hash(module.Empty()) == hash(())
        and repr(module.Empty()) == "Empty()"
    )
    assert module.Ordered(1) < module.Ordered(2)
    assert module.WithDict(1) != module.Derived(1) and module.WithDict(1) == module.WithDict(1)


def test_a_frozen_record_refuses_what_is_no_attribute_of_its_own(module: Any) -> None:
    one = module.Frozen(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'a'"):
        one.a = 3
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'a'"):
        del one.a
    with pytest.raises((dataclasses.FrozenInstanceError, TypeError)):  # the latter is a fault of Python 3.11
        one.unknown = 3
    assert not hasattr(module.Plain(1.0), "__dict__") and not hasattr(one, "__dict__")
    derived = module.Derived(4)
    derived.more = 5
    assert derived.more == 5
    del derived.more
    for record in (derived, module.Further(1), module.WithDict(1)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            record.self = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        module.Further(1).y = 3


def test_records_are_copied_pickled_replaced_and_matched(module: Any) -> None:
    one = module.Frozen(1, module.Plain(2.0), (5,), [6], 8)
    for again in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert again == one and type(again) is type(one) and again.b.total == 4.0
    assert dataclasses.replace(one, a=4) == module.Frozen(4, module.Plain(2.0), (5,), [6], 8)
    assert dataclasses.asdict(module.Frozen(1)) == {"a": 1, "b": None, "c": (1, 2), "d": [], "e": 7}
    assert [each.name for each in dataclasses.fields(one)] == ["a", "b", "c", "d", "e"]
    assert dataclasses.is_dataclass(one) and type(one).__match_args__ == ("a", "b", "c", "d", "e")
    assert pickle.loads(pickle.dumps(module.WithDict(3))) == module.WithDict(3)
    assert dataclasses.replace(module.Further(1), y=5) == module.Further(1, 5)
    assert module.Frozen.__dataclass_params__.frozen and not module.Plain.__dataclass_params__.frozen
    assert module.Frozen.__doc__ == "A record with every kind of default."


def test_a_record_that_is_not_frozen_cannot_inherit_from_a_frozen_one(module: Any) -> None:
    with pytest.raises(TypeError, match="cannot inherit non-frozen dataclass from a frozen one"):
        exec("@dataclass\nclass Loose(WithDict):\n    z: int = 1\n", module.__dict__)


def test_a_class_of_the_standard_library_may_inherit_from_a_record() -> None:
    """As users' policies and scalers do from ours."""
    module = made("from sundog.actors.core.records import dataclass", "records_to_inherit_from")
    exec(
        "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass Own(WithDict):\n    z: int = 3\n",
        module.__dict__,
    )
    own = module.Own(1)
    assert repr(own) == "Own(self=1, z=3)" and own == module.Own(1, 3) and own != module.WithDict(1)
    assert dataclasses.replace(own, z=4).z == 4 and hash(own) == hash((1, 3))
    for name in ("self", "z"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(own, name, 5)
