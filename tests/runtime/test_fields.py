"""Fields of JSON files: accepted values, and errors in JSON's terms."""

from dataclasses import dataclass

import pytest

from sundog.runtime.checkpoint.fields import FieldError, fields_of


@dataclass(frozen=True)
class Inner:
    kind: str | None = None


@dataclass(frozen=True)
class Outer:
    count: int = 0
    share: float = 1.0
    is_on: bool = False
    names: list[str] | None = None
    ranks: dict[str, int] | None = None
    inner: Inner | None = None
    whatever: object = None


def test_values_are_taken_and_others_left() -> None:
    given = {"count": 8.0, "share": 2, "is_on": True, "names": ["a"], "ranks": {"x": 3}, "unknown": 1}
    found = fields_of(Outer, given | {"inner": {"kind": "yarn", "more": 0}, "whatever": [{}]})
    assert found == Outer(8, 2.0, True, ["a"], {"x": 3}, Inner("yarn"), [{}])
    assert type(found.count) is int and type(found.share) is float
    assert fields_of(Outer, {"inner": None, "names": None}) == Outer()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("count", "8", "count is '8'; it should be a whole number"),
        ("count", 8.5, "count is 8.5; it should be a whole number"),
        ("count", True, "count is True; it should be a whole number"),
        ("count", None, "count is None; it should be a whole number"),
        ("share", "much", "share is 'much'; it should be a number"),
        ("is_on", 1, "is_on is 1; it should be true or false"),
        ("names", "a", "names is 'a'; it should be a list or null"),
        ("names", ["a", 2], "names.1 is 2; it should be a string"),
        ("ranks", {"x": "y"}, "ranks.x is 'y'; it should be a whole number"),
        ("inner", [], "inner is []; it should be an object or null"),
        ("inner", {"kind": 3}, "inner.kind is 3; it should be a string or null"),
    ],
)
def test_what_is_of_another_kind_is_named(field: str, value: object, message: str) -> None:
    with pytest.raises(FieldError) as caught:
        fields_of(Outer, {field: value})
    assert str(caught.value) == message
