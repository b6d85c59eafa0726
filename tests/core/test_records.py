"""Records are dataclasses in every respect but when their methods are written."""

import copy
import dataclasses
import inspect
import pickle

import pytest

from actors.core import records
from actors.core.records import FEW, dataclass

fields = dataclasses.field


@dataclass(frozen=True, slots=True)
class Size:
    """Frozen, with a default and a check."""

    width: int
    height: int = 3
    marks: list[str] = fields(default_factory=list, compare=False)

    def __post_init__(self) -> None:
        if self.width < 0:
            raise ValueError("negative")


@dataclass(frozen=True, slots=True)
class Box(Size):
    """One more field than its parent."""

    depth: int = 1


@dataclass(slots=True, kw_only=True)
class Count:
    """Not frozen, and never a key."""

    number: int = 0


class Plain(Size):
    """No record of its own."""


@dataclasses.dataclass(frozen=True)
class Twin:
    """What the standard library makes of the same fields."""

    width: int
    height: int = 3


def test_a_record_is_made_compared_printed_and_hashed_like_a_dataclass() -> None:
    """Before and after its methods are written, which the number made decides for `__init__`."""
    for _ in range(2 * FEW):
        size = Size(4)
        assert (size.width, size.height, size.marks) == (4, 3, [])
        assert size == Size(4, height=3) == Size(height=3, width=4) != Size(5)
        assert hash(size) == hash(Twin(4)) and repr(size) == "Size(width=4, height=3, marks=[])"
        assert size != Box(4) and Box(4, 5, [], 6).depth == 6 and Box(4) == Box(4, depth=1)
        assert Size(4).marks is not Size(4).marks
        with pytest.raises(ValueError, match="negative"):
            Size(-1)


@pytest.mark.parametrize("arguments", [((), {}), ((1, 2, [], 4), {}), ((1,), {"width": 2}), ((1,), {"x": 2})])
def test_wrong_arguments_are_refused_in_the_words_of_python(
    arguments: tuple[tuple[int, ...], dict[str, int]],
) -> None:
    """The first time as well as later; the words are those of a real `__init__`."""
    args, kwargs = arguments

    @dataclass(frozen=True)
    class Fresh:
        """Made for this test alone."""

        width: int
        height: int = 3
        marks: int = 4

    for _ in range(2):
        with pytest.raises(TypeError, match=r"__init__\(\)"):
            Fresh(*args, **kwargs)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="positional"):
        Count(1)  # type: ignore[misc]


def test_a_frozen_record_keeps_its_fields_and_a_plain_subclass_may_have_others() -> None:
    """As `dataclasses` has it."""
    size, plain = Size(1), Plain(1)
    for frozen in (size, plain, Box(1)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            frozen.width = 2  # type: ignore[misc]
        with pytest.raises(dataclasses.FrozenInstanceError):
            del frozen.height  # type: ignore[misc]
    plain.note = "mine"  # type: ignore[attr-defined]
    assert plain.note == "mine"  # type: ignore[attr-defined]
    count = Count()
    count.number += 1
    assert count == Count(number=1)
    with pytest.raises(TypeError, match="unhashable"):
        hash(count)


def test_records_are_copied_replaced_pickled_and_described() -> None:
    """What other code asks of a dataclass."""
    size = Size(4, marks=["a"])
    assert pickle.loads(pickle.dumps(size)) == copy.copy(size) == size
    assert dataclasses.replace(size, width=5) == Size(5) and dataclasses.asdict(size)["marks"] == ["a"]
    assert [each.name for each in dataclasses.fields(Box)] == ["width", "height", "marks", "depth"]
    assert list(inspect.signature(Box).parameters) == ["width", "height", "marks", "depth"]
    assert str(inspect.signature(Count)) == "(*, number: int = 0) -> None"

    @dataclasses.dataclass(frozen=True)
    class Theirs(Size):
        """A dataclass of the standard library, as users' policies are."""

        more: int = 2

    assert Theirs(1, more=3).more == 3 and list(inspect.signature(Theirs).parameters)[-1] == "more"


def test_nothing_is_written_before_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the module is for."""
    written: list[str] = []
    write = records._write

    def noted(owner: type, name: str, options: dict[str, bool]) -> object:
        written.append(name)
        return write(owner, name, options)

    monkeypatch.setattr(records, "_write", noted)

    @dataclass(frozen=True, slots=True)
    class Fresh:
        """Made for this test alone."""

        width: int

    one, other = Fresh(1), Fresh(1)
    assert written == []
    assert one == other and one == other and written == ["__eq__"]
    many = [Fresh(number) for number in range(FEW)]
    assert written == ["__eq__", "__init__"] and many[-1].width == FEW - 1
