"""Requests of a trace, and the error for malformed ones."""

import math
from collections.abc import Iterator
from decimal import Decimal
from itertools import chain
from typing import Final, NamedTuple

from sundog.actors.core.config import ConfigError

MAX_TOKENS = 100_000_000
"""Tokens of one request above which its row is considered damaged."""
MAX_ARRIVAL_S = 2.0**22
"""Latest first arrival, 48 days, that is used unchanged; a later one is a date."""
MAX_SPAN_S = 2.0**24
"""Latest arrival, 194 days."""
EXACT_S: Final = 2.0**23
"""Seconds up to which a run's clock adds step times exactly, 97 days (`sundog.sim.backend`)."""
LATEST_DATE_S = 2.0**33
"""Latest date, in the year 2242: a later one is in another unit."""


class TraceError(ConfigError):
    r"""A trace that cannot be read. The message names file, line, column and reason.

    Example:
        >>> import pathlib, sundog, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "trace.csv"
        >>> _ = file.write_text("arrived_at,input_tokens,output_tokens\\n0.0,many,5\\n")
        >>> sundog.replay(file, gpu="h100")
        Traceback (most recent call last):
        sundog.TraceError: trace.csv, line 2
    """

    def __init__(self, path: str, line: int, reason: str, column: str | None = None) -> None:
        where = f"{path}, line {line}" + (f", column {column}" if column else "")
        super().__init__(f"{where}: {reason}")
        self.path, self.line, self.column, self.reason = path, line, column, reason


class TraceRequest(NamedTuple):
    """Request that arrives `arrival_s` after the start of the trace.

    `hash_ids` identify the prompt's contents, one id per `hash_block_tokens` tokens; equal ids at the same
    place mean equal prompts up to there (each id covers everything before it too). None if contents are
    unknown. `slo_ttft_s`, `slo_tpot_s` and `slo_e2e_s` are limits on the time to the first token, between
    tokens, and to the end. `predicted_tokens` is a prediction of its answer's length, made when it was
    recorded. A request `after` others, earlier ones with sessions, arrives `pause_s` after the last of them
    has ended, and `arrival_s` is the earliest possible time.
    """

    request_id: str
    arrival_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    hash_ids: tuple[int, ...] | None = None
    hash_block_tokens: int = 0
    priority: int = 0
    tenant: str | None = None
    session: str | None = None
    slo_ttft_s: float | None = None
    after: tuple[str, ...] = ()
    pause_s: float = 0.0
    slo_tpot_s: float | None = None
    slo_e2e_s: float | None = None
    predicted_tokens: int | None = None

    @property
    def limits_s(self) -> tuple[float | None, float | None, float | None]:
        """Limits for TTFT, TPOT and E2E, in seconds."""
        return self.slo_ttft_s, self.slo_tpot_s, self.slo_e2e_s

    def block_hashes(self, block_size: int) -> tuple[int, ...] | None:
        """Return identities of the prompt's full blocks of `block_size` tokens; None if unknown.

        Costs O(blocks), so call it when the request arrives. If an id covers several blocks, each gets a
        number of its own; if several ids cover a block, the last is its identity. If neither size divides the
        other, a block's identity is the id that covers its last token.
        """
        if self.hash_ids is None:
            return None
        num_blocks = self.num_prompt_tokens // block_size
        parts, rest = divmod(self.hash_block_tokens, block_size)
        if rest == 0 and parts:
            ranges = [range(i * parts, i * parts + parts) for i in self.hash_ids]
            return tuple(chain.from_iterable(ranges))[:num_blocks]
        merged, rest = divmod(block_size, self.hash_block_tokens)
        if rest:
            return tuple(self._ending_ids(block_size, num_blocks, parts + 1))
        return self.hash_ids[merged - 1 :: merged][:num_blocks]

    def _ending_ids(self, block_size: int, num_blocks: int, most: int) -> Iterator[int]:
        """Yield an identity for each block that ends in an id; at most `most` end in one."""
        ids, last, count = self.hash_ids or (), -1, 0
        for end in range(block_size, num_blocks * block_size + 1, block_size):
            index = -(-end // self.hash_block_tokens) - 1
            if index >= len(ids):
                return
            count = count + 1 if index == last else 0
            last = index
            yield ids[index] * most + count


class FromFirst:
    """Converter of a file's times to seconds after the first, exact to the printed digits, if the first is a
    date.

    A trace whose first time is within 48 days keeps its times.
    """

    __slots__ = ("_first", "_is_begun")

    def __init__(self) -> None:
        self._first: Decimal | None = None
        self._is_begun = False

    @property
    def is_date(self) -> bool:
        """Whether the first time was a date."""
        return self._first is not None

    def __call__(self, arrival_s: float, printed: float | str, scale: float = 1.0) -> float:
        """Return the seconds of a time in units of 1 / `scale` seconds."""
        if not self._is_begun:
            self._is_begun = True
            if MAX_ARRIVAL_S < arrival_s < LATEST_DATE_S:
                self._first = Decimal(str(printed))
        if self._first is None:
            return arrival_s
        return float((Decimal(str(printed)) - self._first) / Decimal(scale))


def default_id(index: int) -> str:
    """Return the id of the `index`-th row of a trace without ids; sorts in arrival order."""
    return "r%07d" % index  # noqa: UP031  # compiled, an f-string with a format takes twice as long


_LAST_DIGITS: Final = ["%02d" % number for number in range(100)]  # noqa: UP031


def default_ids(first: int, stop: int) -> list[str]:
    """Return the ids of rows from `first` to before `stop`, in a tenth of the time of one after another."""
    names: list[str] = []
    while first < stop:
        digits = _LAST_DIGITS[first % 100 : first % 100 + stop - first]
        start = "r%05d" % (first // 100)  # noqa: UP031
        names += [start + last for last in digits]
        first += len(digits)
    return names


def arrival_problem(arrival_s: float, previous_s: float) -> str | None:
    """Return why an arrival, in seconds, is not valid; None if it is."""
    if math.isnan(arrival_s):
        return "the arrival is NaN"
    if arrival_s > MAX_SPAN_S:
        return f"the arrival {arrival_s:g} s is later than {MAX_SPAN_S:.0f} s (194 days)"
    if arrival_s < 0 and previous_s == 0:
        return f"the arrival {arrival_s:g} s is negative"
    if arrival_s < previous_s:
        above = f"the row above ({previous_s:g} s)"
        return f"the arrival {arrival_s:g} s is before {above}; sort the rows by arrival"
    return None


def tokens_problem(num_tokens: int, what: str) -> str | None:
    """Return why a number of tokens is not valid; None if it is."""
    if num_tokens < 0:
        return f"{num_tokens} {what} tokens: a count is not negative"
    if num_tokens == 0:
        return f"0 {what} tokens: a request has at least 1; remove the row"
    if num_tokens > MAX_TOKENS:
        return f"more than {MAX_TOKENS:,} {what} tokens"
    return None
