"""JSON-lines traces: our own (a header line, then rows), and Mooncake's and Qwen-Bailian's (rows only).

Every field of a row is checked when it is read. Equal requests are written in our own format as equal bytes,
gzipped or not.
"""

import gzip
import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

from sundog.actors.core.config import ConfigError
from sundog.actors.core.names import did_you_mean
from sundog.sim.files.lines import is_text, parse_object
from sundog.sim.files.run_files import write_whole
from sundog.sim.trace.record import (
    MAX_ARRIVAL_S,
    FromFirst,
    TraceError,
    TraceRequest,
    arrival_problem,
    default_id,
    tokens_problem,
)


class JsonRow:
    """JSON object with its place in the file; every getter names the field in its error."""

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

    def seconds(self, key: str, scale: float, previous_s: float, from_first: FromFirst) -> float:
        value = self.values.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error("missing" if value is None else f"{value!r} is not a number", key)
        try:
            arrival_s = value / scale
        except OverflowError:
            arrival_s = math.inf if value > 0 else -math.inf
        arrival_s = from_first(arrival_s, value, scale)
        if value < 0:
            raise self.error(f"the arrival {arrival_s:g} s is negative", key)
        reason = arrival_problem(arrival_s, previous_s)
        if reason:
            raise self.error(reason, key)
        return arrival_s

    def span(self, key: str, *, scale: float = 1.0, may_be_zero: bool = False) -> float | None:
        """Return a duration in seconds from one in units of 1 / `scale` seconds, if it is given."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(f"{value!r} is not a number", key)
        if not 0 <= value <= MAX_ARRIVAL_S * scale or (value == 0 and not may_be_zero):
            least = "of at least 0 s" if may_be_zero else "above 0 s"
            raise self.error(f"{value!r} is not a time {least}, and below 48 days", key)
        return value / scale

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

    def texts(self, key: str) -> tuple[str, ...]:
        """Return the texts of a list, or a single text as a list of one."""
        value = self.values.get(key)
        if not isinstance(value, list):
            text = self.text(key)
            return () if text is None else (text,)
        if not all(isinstance(each, str) and each and is_text(each) for each in value):
            raise self.error(f"{value!r:.80} is not a list of texts", key)
        return tuple(value)

    def whole_numbers(self, key: str) -> tuple[int, ...] | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not set(map(type, value)) <= {int} or min(value, default=0) < 0:
            raise self.error("it must be a list of whole numbers of at least 0", key)
        return tuple(value)

    def hash_ids(self, num_prompt_tokens: int, block_tokens: int) -> tuple[int, ...] | None:
        value = self.whole_numbers("hash_ids")
        if value is None:
            return None
        full = num_prompt_tokens // block_tokens
        if not full <= len(value) <= full + 1:
            raise self.error(
                f"{len(value)} ids for {num_prompt_tokens} prompt tokens, at {block_tokens} each"
                f" there must be {full} or {full + 1}",
                "hash_ids",
            )
        return value


OWN_FORMAT = "sundog-trace"
OWN_VERSION = 1
UNITS = {"arrival_s": "seconds", "prompt_tokens": "tokens", "output_tokens": "tokens"}
MOONCAKE_BLOCK_TOKENS = 512
"""Tokens per hash id (Mooncake FAST'25 release, README of its traces)."""

OWN_KEYS = {
    "arrival_s",
    "prompt_tokens",
    "output_tokens",
    "hash_ids",
    "priority",
    "tenant",
    "session",
    "slo_ttft_s",
    "slo_tpot_s",
    "slo_e2e_s",
    "predicted_tokens",
    "id",
    "after",
    "pause_s",
}
BAILIAN_BLOCK_TOKENS = 16
"""Tokens per hash id; times are in seconds (Alibaba's Qwen-Bailian usage traces, README)."""
BAILIAN_KEYS = {
    "chat_id",
    "parent_chat_id",
    "timestamp",
    "input_length",
    "output_length",
    "type",
    "turn",
    "hash_ids",
}
MOONCAKE_KEYS = {"timestamp", "input_length", "output_length", "hash_ids"}
HEADER_KEYS = {"format", "version", "units", "seed", "provenance", "hash_block_tokens"}


def check_header(path: str, header: dict[str, Any]) -> int:
    """Check a header of our format; return tokens per hash id, or 0."""

    def error(key: str, reason: str) -> TraceError:
        return TraceError(path, 1, reason, key)

    for key in sorted(header.keys() - HEADER_KEYS):
        raise error(key, f"unknown header key; known: {', '.join(sorted(HEADER_KEYS))}")
    if header.get("version") != OWN_VERSION:
        raise error("version", f"version {header.get('version')!r}; this reads {OWN_VERSION}")
    units = header.get("units")
    if not isinstance(units, dict):
        raise error("units", "the header must give the units")
    for key, unit in UNITS.items():
        if units.get(key) != unit:
            raise error("units", f"{key} is in {units.get(key)!r}; this reads {unit}")
    block_tokens = header.get("hash_block_tokens")
    if block_tokens is None:
        return 0
    if type(block_tokens) is not int or block_tokens < 1:
        raise error("hash_block_tokens", f"{block_tokens!r} is not a whole number of at least 1")
    return block_tokens


def own_rows(path: str, block_tokens: int, lines: Iterable[bytes]) -> Iterator[TraceRequest]:
    """Yield the requests of our own format after its header line."""
    previous_s, index, number, from_first = 0.0, 0, 1, FromFirst()
    ids: dict[str, str | None] = {}
    """Id of each row, with its session."""
    for number, line in enumerate(lines, 2):
        row = JsonRow(path, number, line, OWN_KEYS)
        previous_s = row.seconds("arrival_s", 1.0, previous_s, from_first)
        prompt = row.tokens("prompt_tokens", "prompt")
        output = row.tokens("output_tokens", "output")
        request_id = row.text("id")
        if request_id is None:
            request_id = default_id(index)
        elif request_id in ids:
            raise row.error(f"{request_id!r} was used by an earlier row", "id")
        priority = row.values.get("priority", 0)
        if type(priority) is not int:
            raise row.error(f"{priority!r} is not a whole number", "priority")
        if not block_tokens and row.values.get("hash_ids") is not None:
            raise row.error("the header does not give hash_block_tokens", "hash_ids")
        hash_ids = row.hash_ids(prompt, block_tokens) if block_tokens else None
        session, after = row.text("session"), row.texts("after")
        pause_s = row.span("pause_s", may_be_zero=True)
        if after and session is None:
            raise row.error("a row after others needs a `session`", "session")
        for name in after:
            if ids.get(name) is None:
                raise row.error(f"{name!r} is not the id of an earlier row with a session", "after")
        if not after and pause_s is not None:
            raise row.error("a pause needs `after`, the id of an earlier row", "pause_s")
        yield TraceRequest(
            request_id,
            previous_s,
            num_prompt_tokens=prompt,
            num_output_tokens=output,
            hash_ids=hash_ids,
            hash_block_tokens=block_tokens,
            priority=priority,
            tenant=row.text("tenant"),
            session=session,
            slo_ttft_s=row.span("slo_ttft_s"),
            after=after,
            pause_s=pause_s or 0.0,
            slo_tpot_s=row.span("slo_tpot_s"),
            slo_e2e_s=row.span("slo_e2e_s"),
            predicted_tokens=row.tokens("predicted_tokens", "predicted")
            if "predicted_tokens" in row.values
            else None,
        )
        ids[request_id] = session
        index += 1
    if not index:
        raise TraceError(path, number, "there are no rows after the header")


def mooncake_rows(path: str, lines: Iterable[bytes]) -> Iterator[TraceRequest]:
    """Yield the requests of a Mooncake trace, `timestamp` in ms, whose first line is already a row.

    Without timestamps all arrive at once; then no row may have one.
    """
    previous_s, from_first, has_times = 0.0, FromFirst(), True
    for index, line in enumerate(lines):
        row = JsonRow(path, index + 1, line, MOONCAKE_KEYS)
        has_times = "timestamp" in row.values if index == 0 else has_times
        if has_times:
            previous_s = row.seconds("timestamp", 1000.0, previous_s, from_first)
        elif "timestamp" in row.values:
            raise row.error("the rows before it have none: give all rows one, or none", "timestamp")
        prompt = row.tokens("input_length", "prompt")
        output = row.tokens("output_length", "output")
        hash_ids = row.hash_ids(prompt, MOONCAKE_BLOCK_TOKENS)
        yield TraceRequest(
            default_id(index),
            previous_s,
            num_prompt_tokens=prompt,
            num_output_tokens=output,
            hash_ids=hash_ids,
            hash_block_tokens=MOONCAKE_BLOCK_TOKENS,
        )


def bailian_rows(path: str, lines: Iterable[bytes]) -> Iterator[TraceRequest]:
    """Yield the requests of a Qwen-Bailian trace; their conversation is their session."""
    previous_s, from_first = 0.0, FromFirst()
    roots: dict[int, int] = {}
    for index, line in enumerate(lines):
        row = JsonRow(path, index + 1, line, BAILIAN_KEYS)
        previous_s = row.seconds("timestamp", 1.0, previous_s, from_first)
        prompt = row.tokens("input_length", "prompt")
        output = row.tokens("output_length", "output")
        hash_ids = row.hash_ids(prompt, BAILIAN_BLOCK_TOKENS)
        chat, parent = row.number_of("chat_id"), row.number_of("parent_chat_id")
        root = roots[chat] = chat if parent < 0 else roots.get(parent, parent)
        yield TraceRequest(
            default_id(index),
            previous_s,
            num_prompt_tokens=prompt,
            num_output_tokens=output,
            hash_ids=hash_ids,
            hash_block_tokens=BAILIAN_BLOCK_TOKENS,
            session=str(root),
        )


def write_trace(
    path: str,
    requests: Iterable[TraceRequest],
    *,
    provenance: str,
    seed: int | None = None,
    hash_block_tokens: int = 0,
) -> int:
    """Write the requests, gzipped if the name ends in .gz; return their number.

    `provenance` is their origin. Default ids and other defaults are left out.
    """
    header: dict[str, object] = {"format": OWN_FORMAT, "version": OWN_VERSION, "units": UNITS}
    header |= {"seed": seed, "provenance": provenance}
    if hash_block_tokens:
        header["hash_block_tokens"] = hash_block_tokens
    lines = [json.dumps(header)]
    for index, request in enumerate(requests):
        if request.hash_ids is not None and request.hash_block_tokens != hash_block_tokens:
            raise ConfigError(
                f"{request.request_id} hashes blocks of {request.hash_block_tokens} tokens,"
                f" the file blocks of {hash_block_tokens}"
            )
        lines.append(json.dumps(_row(index, request), separators=(",", ":")))
    data = ("\n".join(lines) + "\n").encode()
    if path.endswith(".gz"):
        # No time stamp or name inside, so that equal traces are equal files.
        data = gzip.compress(data, mtime=0)
    write_whole(path, data)
    return len(lines) - 1


def _row(index: int, request: TraceRequest) -> dict[str, object]:
    row: dict[str, object] = {
        "arrival_s": request.arrival_s,
        "prompt_tokens": request.num_prompt_tokens,
        "output_tokens": request.num_output_tokens,
    }
    if request.hash_ids is not None:
        row["hash_ids"] = request.hash_ids
    if request.priority:
        row["priority"] = request.priority
    for name in ("tenant", "session", "slo_ttft_s", "slo_tpot_s", "slo_e2e_s", "predicted_tokens"):
        if getattr(request, name) is not None:
            row[name] = getattr(request, name)
    if request.after:
        row["after"] = request.after[0] if len(request.after) == 1 else request.after
        row["pause_s"] = request.pause_s
    if request.request_id != default_id(index):
        row["id"] = request.request_id
    return row
