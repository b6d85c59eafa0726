"""One row of a JSON-lines trace, every field checked as it is asked for."""

import math

from actors.core.names import did_you_mean
from sim.files.json_lines import is_text, parse_object
from sim.trace.csv_rows import arrival_problem, tokens_problem
from sim.trace.record import MAX_ARRIVAL_S, TraceError


class JsonRow:
    """One JSON object with the place it came from; every getter refuses by name."""

    __slots__ = ("number", "path", "values")

    def __init__(self, path: str, number: int, line: bytes, keys: set[str]) -> None:
        self.path, self.number = path, number
        self.values = parse_object(path, number, line, TraceError)
        extra = self.values.keys() - keys
        if extra:
            name = min(extra)
            hint = did_you_mean(name, sorted(keys)) or f" Known: {', '.join(sorted(keys))}."
            raise self.error(f"unknown key.{hint}", name)

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

    def span(self, key: str, *, may_be_zero: bool = False) -> float | None:
        """Return a length of time in seconds, if it is given."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(f"{value!r} is not a number", key)
        if not 0 <= value <= MAX_ARRIVAL_S or (value == 0 and not may_be_zero):
            least = "of at least 0 s" if may_be_zero else "above 0 s"
            raise self.error(f"{value!r} is not a time {least}, and below 48 days", key)
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
        if value is not None and not is_text(value):
            raise self.error(f"{value!r} has half a surrogate pair, which is no text", key)
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
