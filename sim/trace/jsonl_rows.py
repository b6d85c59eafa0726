"""JSON-lines traces: our own (a header line, then rows) and Mooncake's (rows only)."""

from collections.abc import Iterable, Iterator
from typing import Any

from sim.trace.json_row import JsonRow
from sim.trace.record import TraceError, TraceRequest, default_id

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
    "id",
    "after",
    "pause_s",
}
BAILIAN_BLOCK_TOKENS = 16
"""Tokens per hash id, and seconds for timestamps (Alibaba's Qwen-Bailian usage traces, README)."""
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
    """Refuse a header of our format that cannot be trusted; returns tokens per hash id, or 0."""

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
    """The requests of our own format after its header line."""
    previous_s, index, number = 0.0, 0, 1
    ids: dict[str, str | None] = {}
    """Each row's id, and its session."""
    for number, line in enumerate(lines, 2):
        row = JsonRow(path, number, line, OWN_KEYS)
        previous_s = row.seconds("arrival_s", 1.0, previous_s)
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
        session, after, pause_s = (
            row.text("session"),
            row.text("after"),
            row.span("pause_s", may_be_zero=True),
        )
        if after is not None and (session is None or ids.get(after) != session):
            raise row.error(f"{after!r} is no earlier row's id, of the same session", "after")
        if after is None and pause_s is not None:
            raise row.error("a pause needs `after`, the id of an earlier row", "pause_s")
        yield TraceRequest(
            request_id,
            previous_s,
            prompt,
            output,
            hash_ids,
            block_tokens,
            priority,
            row.text("tenant"),
            session,
            row.span("slo_ttft_s"),
            after,
            pause_s or 0.0,
            row.span("slo_tpot_s"),
            row.span("slo_e2e_s"),
        )
        ids[request_id] = session
        index += 1
    if not index:
        raise TraceError(path, number, "there are no rows after the header")


def mooncake_rows(path: str, lines: Iterable[bytes]) -> Iterator[TraceRequest]:
    """The requests of a Mooncake trace, `timestamp` in ms, whose first line is already a row."""
    previous_s = 0.0
    for index, line in enumerate(lines):
        row = JsonRow(path, index + 1, line, MOONCAKE_KEYS)
        previous_s = row.seconds("timestamp", 1000.0, previous_s)
        prompt = row.tokens("input_length", "prompt")
        output = row.tokens("output_length", "output")
        hash_ids = row.hash_ids(prompt, MOONCAKE_BLOCK_TOKENS)
        yield TraceRequest(default_id(index), previous_s, prompt, output, hash_ids, MOONCAKE_BLOCK_TOKENS)


def bailian_rows(path: str, lines: Iterable[bytes]) -> Iterator[TraceRequest]:
    """The requests of a Qwen-Bailian trace; the conversation they belong to is their session."""
    previous_s = 0.0
    roots: dict[int, int] = {}
    for index, line in enumerate(lines):
        row = JsonRow(path, index + 1, line, BAILIAN_KEYS)
        previous_s = row.seconds("timestamp", 1.0, previous_s)
        prompt = row.tokens("input_length", "prompt")
        output = row.tokens("output_length", "output")
        hash_ids = row.hash_ids(prompt, BAILIAN_BLOCK_TOKENS)
        chat, parent = row.number_of("chat_id"), row.number_of("parent_chat_id")
        root = roots[chat] = chat if parent < 0 else roots.get(parent, parent)
        yield TraceRequest(
            default_id(index), previous_s, prompt, output, hash_ids, BAILIAN_BLOCK_TOKENS, session=str(root)
        )
