"""One row of a JSON-lines trace, every field checked as it is asked for."""

import json
import math
from difflib import get_close_matches
from typing import Any

from sim.trace.csv_rows import arrival_problem, tokens_problem
from sim.trace.lines import shown
from sim.trace.record import MAX_ARRIVAL_S, TraceError


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


class JsonRow:
    """One JSON object with the place it came from; every getter refuses by name."""

    __slots__ = ("number", "path", "values")

    def __init__(self, path: str, number: int, line: bytes, keys: set[str]) -> None:
        self.path, self.number = path, number
        self.values = parse_object(path, number, line)
        extra = self.values.keys() - keys
        if extra:
            name = min(extra)
            near = get_close_matches(name, sorted(keys), n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(sorted(keys))}"
            raise self.error(f"unknown key{hint}", name)

    def error(self, reason: str, column: str) -> TraceError:
        return TraceError(self.path, self.number, reason, column)

    def seconds(self, key: str, scale: float, previous_s: float) -> float:
        value = self.values.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error("missing" if value is None else f"{value!r} is not a number", key)
        try:
            arrival_s = value / scale
        except OverflowError:
            arrival_s = math.inf if value > 0 else -math.inf
        if arrival_s < 0:
            raise self.error(f"the arrival {arrival_s:g} s is negative", key)
        reason = arrival_problem(arrival_s, previous_s)
        if reason:
            raise self.error(reason, key)
        return arrival_s

    def span(self, key: str) -> float | None:
        """A length of time above 0, in seconds, if it is given."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(f"{value!r} is not a number", key)
        if not 0 < value <= MAX_ARRIVAL_S:
            raise self.error(f"{value!r} is not a time above 0 s, and below 48 days", key)
        return float(value)

    def tokens(self, key: str, what: str) -> int:
        value = self.values.get(key)
        if isinstance(value, bool) or not isinstance(value, int):
            wrong = "missing" if value is None else f"{value!r} is not a whole number"
            raise self.error(wrong, key)
        reason = tokens_problem(value, what)
        if reason:
            raise self.error(reason, key)
        return value

    def number_of(self, key: str) -> int:
        value = self.values.get(key)
        if type(value) is not int:
            wrong = "missing" if value is None else f"{value!r} is not a whole number"
            raise self.error(wrong, key)
        return value

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is not None and not (isinstance(value, str) and value):
            raise self.error(f"{value!r} is not a text", key)
        return value

    def hash_ids(self, num_prompt_tokens: int, block_tokens: int) -> tuple[int, ...] | None:
        value = self.values.get("hash_ids")
        if value is None:
            return None
        whole = isinstance(value, list) and set(map(type, value)) <= {int}
        if not whole or min(value, default=0) < 0:
            raise self.error("it must be a list of whole numbers of at least 0", "hash_ids")
        full = num_prompt_tokens // block_tokens
        if not full <= len(value) <= full + 1:
            raise self.error(
                f"{len(value)} ids for {num_prompt_tokens} prompt tokens, at {block_tokens} each"
                f" there must be {full} or {full + 1}",
                "hash_ids",
            )
        return tuple(value)


def parse_object(path: str, number: int, line: bytes) -> dict[str, Any]:
    """The JSON object on a line; raises TraceError for anything else, NaN included."""
    if not line.strip():
        raise TraceError(path, number, "the line is blank; remove it")
    value = decode(path, number, line)
    if not isinstance(value, dict):
        raise TraceError(path, number, f"{shown(line)} is not a JSON object")
    return value


def decode(path: str, number: int, text: bytes) -> Any:
    """The JSON value of a text that begins with line `number`; raises TraceError if it is none."""
    try:
        return DECODER.decode(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise TraceError(path, number, f"not UTF-8: byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        line = text.split(b"\n")[error.lineno - 1]
        reason = f"not JSON: {error.msg} at character {error.colno} of {shown(line)}"
        raise TraceError(path, number + error.lineno - 1, reason) from None
    except (ValueError, RecursionError) as error:
        raise TraceError(path, number, f"not JSON: {error}") from None
