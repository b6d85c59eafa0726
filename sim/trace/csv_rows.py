"""CSV traces: Azure's, the bench files' (Vidur's columns), ServeGen's and BurstGPT's.

Quoting is not supported, as none of these formats quotes.
"""

from collections import deque
from collections.abc import Callable, Iterator
from datetime import date
from itertools import chain, islice, repeat
from typing import Final

from sundog.actors.core.records import dataclass
from sundog.sim.files.lines import shown
from sundog.sim.trace.record import (
    MAX_SPAN_S,
    MAX_TOKENS,
    FromFirst,
    TraceError,
    TraceRequest,
    arrival_problem,
    default_id,
    default_ids,
    tokens_problem,
)


@dataclass(frozen=True, slots=True)
class Dialect:
    """CSV format: all columns in file order, and those with arrival, prompt and output."""

    name: str
    columns: tuple[str, ...]
    places: tuple[int, int, int] = (0, 1, 2)
    timestamps: bool = False

    @property
    def header(self) -> str:
        return ",".join(self.columns)


AZURE = Dialect("azure", ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), timestamps=True)
BENCH = Dialect("bench", ("arrived_at", "num_prefill_tokens", "num_decode_tokens"))
SERVEGEN = Dialect("servegen", ("arrived_at", "input_tokens", "output_tokens"))
SERVEGEN_REASON = Dialect("servegen", (*SERVEGEN.columns, "reason_ratio"))
BURST_TOKENS = ("Model", "Request tokens", "Response tokens", "Total tokens", "Log Type")
BURSTGPT = Dialect("burstgpt", ("Timestamp", *BURST_TOKENS), (0, 2, 3))
"""Wang et al., "BurstGPT" (KDD 2025), seconds since the start; rows of failed requests have 0 response
tokens and are refused.
"""
BURSTGPT_SESSIONS = Dialect("burstgpt", ("Timestamp", "Session ID", "Elapsed time", *BURST_TOKENS), (0, 4, 5))
SPLITWISE_FIRST = ("request_id", "request_type", "application_id")
SPLITWISE = Dialect(
    "splitwise",
    (*SPLITWISE_FIRST, "arrival_timestamp", "batch_size", "prompt_size", "token_size"),
    places=(3, 5, 6),
)
"""Patel et al., "Splitwise" (ISCA 2024): the traces of its simulator, in seconds."""
KNOWN_DIALECTS = (AZURE, BENCH, SERVEGEN, SERVEGEN_REASON, BURSTGPT, BURSTGPT_SESSIONS, SPLITWISE)
DIALECTS = {d.header: d for d in KNOWN_DIALECTS}


UNDERSCORE: Final = ord("_")
"""Underscore, which Python allows in numbers and traces do not; looking for this byte is faster than an
exception.
"""
SAFE_DIGITS = 8
"""Number of digits up to which a number cannot exceed MAX_TOKENS."""
ROWS_AT_ONCE: Final = 512
"""Rows read together, in a third of the time of reading one after another."""


class Timestamps:
    """Parser of Azure's times, `2023-11-16 18:15:46.6805900` or `2024-05-10 00:00:00.009930+00:00`.

    Returns the seconds since the first, exact to the printed digits; the only supported offset is +00:00.
    Raises ValueError for anything else.
    """

    __slots__ = ("_first", "_minute", "_minute_text")

    def __init__(self) -> None:
        self._minute_text, self._minute = b"", 0
        self._first: int | None = None

    def __call__(self, text: bytes) -> float:
        if text[:17] != self._minute_text:
            self._minute, self._minute_text = _minute(text[:17]), text[:17]
        seconds, _, fraction = text[17:].removesuffix(b"+00:00").partition(b".")
        if not (seconds + fraction).isdigit() or len(seconds) != 2 or len(fraction) > 9:
            raise ValueError(f"{text!r} is not YYYY-MM-DD HH:MM:SS.fraction")
        if seconds > b"59":
            raise ValueError(f"{text!r} has no such second")
        ns = (self._minute * 60 + int(seconds)) * 10**9 + int(fraction.ljust(9, b"0"))
        if self._first is None:
            self._first = ns
        return (ns - self._first) / 1e9


def _minute(text: bytes) -> int:
    day = date.fromisoformat(text[:10].decode("ascii")).toordinal()
    hours, minutes = text[11:13], text[14:16]
    marks = text[10:11] + text[13:14] + text[16:17]
    if marks not in (b" ::", b"T::") or not (hours + minutes).isdigit():
        raise ValueError(f"{text!r} is not YYYY-MM-DD HH:MM:")
    if hours > b"23" or minutes > b"59":
        raise ValueError(f"{text!r} is not a time of day")
    return (day * 24 + int(hours)) * 60 + int(minutes)


class CsvRows:
    """Reader of the rows of one CSV file after its header line.

    Zero output tokens are refused: vLLM refuses such a request, and raising them to one, as Vidur does, would
    change the trace silently.
    """

    __slots__ = ("_arrival", "_dialect", "_from_first", "_index", "_names", "_path", "_previous_s")

    def __init__(self, path: str, dialect: Dialect) -> None:
        self._path, self._dialect = path, dialect
        self._names = dialect.columns
        self._arrival: Callable[[bytes], float] = Timestamps() if dialect.timestamps else float
        self._previous_s, self._index = 0.0, 0
        self._from_first: FromFirst | None = FromFirst()
        """Counter of times from the first, if that is a date; None if it is not."""

    def read(self, lines: Iterator[bytes]) -> Iterator[TraceRequest]:
        """Yield the requests; raises TraceError at the first bad row, or if there is none."""
        return chain.from_iterable(self._parts(lines))

    def _parts(self, lines: Iterator[bytes]) -> Iterator[list[TraceRequest]]:
        for line in islice(lines, 1):  # It says whether instants are dates.
            yield [self._row(line)]
        trouble: Exception | None = None
        while trouble is None:
            taken = deque[bytes]()
            try:
                taken.extend(islice(lines, ROWS_AT_ONCE))  # Unlike a list, it keeps those before an error.
            except Exception as error:  # noqa: BLE001  # raised below, behind the rows before it
                trouble = error
            some = list(taken)
            if not some:
                break
            rows = self._usual(some)
            if rows is not None:
                yield rows
            else:
                for line in some:
                    yield [self._row(line)]
        if trouble is not None:
            raise trouble
        if not self._index:
            raise TraceError(self._path, 1, "there are no rows after the header")

    def _usual(self, lines: list[bytes]) -> list[TraceRequest] | None:
        """Return the requests of many rows by a fast path; None if a row may be malformed or has a date."""
        width, (when, prompt_place, output_place) = len(self._names), self._dialect.places
        if self._from_first is not None or self._dialect.timestamps:
            return None
        # Between two rows a field that no line can contain: it shows whether each has the right number.
        fields, step = b",\n,".join(lines).split(b","), width + 1
        if len(fields) != step * len(lines) - 1 or fields[width::step].count(b"\n") != len(lines) - 1:
            return None
        instants, prompts, outputs = (
            fields[when::step],
            fields[prompt_place::step],
            fields[output_place::step],
        )
        if not (b"".join(prompts).isdigit() and b"".join(outputs).isdigit()):
            return None
        letters = b"".join(instants).lower()
        if b"_" in letters or b"n" in letters:  # as NaN and infinity have
            return None
        try:
            arrivals = list(map(float, instants))
            num_prompt, num_output = list(map(int, prompts)), list(map(int, outputs))
        except ValueError:
            return None
        is_in_order = self._previous_s <= arrivals[0] and arrivals == sorted(arrivals)
        if not is_in_order or arrivals[-1] > MAX_SPAN_S or min(num_prompt) < 1 or min(num_output) < 1:
            return None
        if max(num_prompt) > MAX_TOKENS or max(num_output) > MAX_TOKENS:
            return None
        first, self._index = self._index, self._index + len(lines)
        self._previous_s = arrivals[-1]
        names = default_ids(first, self._index)
        rest = [repeat(value) for value in TraceRequest._field_defaults.values()]
        values = zip(names, arrivals, num_prompt, num_output, *rest, strict=False)
        # A fifth of what a call of the class takes.
        return list(map(tuple.__new__, repeat(TraceRequest), values))

    def _row(self, line: bytes) -> TraceRequest:
        names, row = self._names, line.split(b",")
        if len(row) != len(names):
            if not line.strip():
                raise self._error("the line is blank; remove it")
            expected = f"{len(names)} ({self._dialect.header})"
            raise self._error(f"{len(row)} columns instead of {expected}")
        when, prompt_place, output_place = self._dialect.places
        arrival_s = self._seconds(row[when])
        prompt = self._tokens(row[prompt_place], names[prompt_place], "prompt")
        output = self._tokens(row[output_place], names[output_place], "output")
        request_id = default_id(self._index)
        self._previous_s, self._index = arrival_s, self._index + 1
        return TraceRequest(request_id, arrival_s, prompt, output)

    def _seconds(self, value: bytes) -> float:
        try:
            if UNDERSCORE in value:
                raise ValueError
            arrival_s = self._arrival(value)
            if self._from_first is not None:
                arrival_s = self._from_first(arrival_s, value.decode("ascii", "replace"))
                if not self._from_first.is_date:
                    self._from_first = None
        except ValueError:
            kind = "a timestamp" if self._dialect.timestamps else "a number"
            raise self._error(f"{shown(value)} is not {kind}", self._arrival_name) from None
        if not 0.0 <= self._previous_s <= arrival_s <= MAX_SPAN_S:
            reason = arrival_problem(arrival_s, self._previous_s)
            if reason:
                raise self._error(reason, self._arrival_name)
        return arrival_s

    @property
    def _arrival_name(self) -> str:
        return self._names[self._dialect.places[0]]

    def _tokens(self, value: bytes, name: str, what: str) -> int:
        if value.isdigit() and len(value) <= SAFE_DIGITS and (few := int(value)):
            return few
        digits = value.removeprefix(b"-")
        if not digits.isdigit():
            raise self._error(f"{shown(value)} is not a whole number", name)
        # Python refuses to convert digits by the thousand; this many are too many anyway.
        num_tokens = int(value) if len(digits) < 20 else MAX_TOKENS + 1
        reason = tokens_problem(num_tokens, what)
        if reason:
            raise self._error(reason, name)
        return num_tokens

    def _error(self, reason: str, column: str | None = None) -> TraceError:
        return TraceError(self._path, self._index + 2, reason, column)
