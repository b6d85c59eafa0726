"""`make test-all` runs exactly what `make test` leaves out."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import backwards, long_among


def item(name: str, **marked: object) -> Any:
    marker = pytest.mark.long(**marked).mark if marked else None
    return SimpleNamespace(nodeid=name, get_closest_marker=lambda _: marker)


@pytest.mark.parametrize("keep", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [8, 9, 14, 60])
def test_as_many_cases_stay_as_are_kept_the_first_among_them(count: int, keep: int) -> None:
    """All others are left to `make test-all`, and none to neither."""
    names = [f"test_a[{number}]" for number in range(count)]
    long = long_among([item(name, reason="many", keep=keep) for name in names])
    assert long < set(names) and len(names) - len(long) == keep and names[0] not in long


def test_without_cases_to_keep_all_are_long_and_without_a_mark_none() -> None:
    """Whatever stands beside them."""
    assert long_among([item("a[1]", reason="slow"), item("a[2]", reason="slow"), item("b")]) == {
        "a[1]",
        "a[2]",
    }


def test_a_case_that_is_asked_for_alone_runs() -> None:
    """By its name, as the few failures that are tried again."""
    assert not long_among([item("a[5]", reason="many", keep=2), item("a[9]", reason="many", keep=2)])


def test_what_is_rare_is_long_as_well() -> None:
    """`make test` leaves it out, and `make test-all` skips it by its own option."""
    assert long_among([item("a", reason="minutes", rare=True)]) == {"a"}


def test_what_is_moderate_is_left_out_by_make_test_alone() -> None:
    """It is long, and other kernels and the compiled simulator run it like what is not."""
    items = [item("a", reason="seconds", moderate=True), item("b", reason="minutes"), item("c")]
    assert long_among(items) == {"a", "b"}
    assert long_among(items, without_moderate=True) == {"b"}


def test_tests_run_backwards_within_their_files() -> None:
    """Files stay in order, so that workers begin with what takes longest."""
    names = ("a.py::one", "a.py::two", "b.py::one", "a_b.py::one[1]", "a_b.py::one[2]")
    assert [each.nodeid for each in backwards([item(name) for name in names])] == [
        "a.py::two",
        "a.py::one",
        "b.py::one",
        "a_b.py::one[2]",
        "a_b.py::one[1]",
    ]
