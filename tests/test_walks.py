"""Stays and returns of a walk equal those counted by hand."""

from pathlib import Path

import pytest

from tools.walks import House

SHOP = '''
from sundog.sim.stock import Shelf, Order, price
from sundog.sim.till import pay, note

def sell(order, place: Shelf):
    """Sell."""
    label(order.name)
    due = price(order)
    if place.holds(order):
        pay(due)
    note(Order(order.name, 2))
    bill = Order(order.name, 1)
    note(bill)
    pay(due)

def label(name):
    return name.upper()
'''
STOCK = """
from dataclasses import dataclass

@dataclass
class Order:
    name: str
    count: int

class Shelf:
    def holds(self, order):
        return self._find(order) is not None
    def _find(self, order):
        return order

def price(order):
    return order.count * rate(order.name)

def rate(name: str):
    return len(other(name))

def other(name):
    return name
"""
TILL = """
from sundog.sim import shop

def pay(due):
    return due

def note(order):
    raise AssertionError("what is in a record is at rest")
"""


@pytest.fixture
def house(tmp_path: Path) -> House:
    for name in ("actors", "runtime", "sundog"):
        (tmp_path / name).mkdir()
    (tmp_path / "sim").mkdir()
    for name, text in (("shop", SHOP), ("stock", STOCK), ("till", TILL)):
        (tmp_path / "sim" / f"{name}.py").write_text(text)
    return House(tmp_path)


def test_a_walk_goes_where_the_parameter_goes(house: House) -> None:
    """Into functions that are given it, by methods of an annotated parameter, and not into records.

    `rate` is given a text alone: it is named and not read. `pay` is read once, and named again.
    """
    walk = house.walk("sim/shop.py", "sell", "order")
    assert walk.stays == [
        ("sim/shop.py", ["sell", "label"]),
        ("sim/stock.py", ["price", "rate", "Shelf.holds", "Shelf._find"]),
        ("sim/till.py", ["pay", "pay"]),
    ]
    assert walk.num_files == 3


def test_a_return_is_a_stay_in_a_file_that_was_left(house: House) -> None:
    """Another parameter of the same function goes elsewhere."""
    walk = house.walk("sim/shop.py", "sell", "place")
    assert [file for file, _ in walk.stays] == ["sim/shop.py", "sim/stock.py"]
    with pytest.raises(KeyError):
        house.walk("sim/shop.py", "buy", "order")


def test_the_walks_of_the_report_are_there() -> None:
    """Of functions that exist; their lengths are a report, no limit."""
    from tools.walks import WALKS

    found = House()
    for file, function, parameter in WALKS:
        assert len(found.walk(file, function, parameter).stays) > 1
