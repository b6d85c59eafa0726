"""Programs of agents in Dynamo's format: requests that wait for others, and for tools between them.

Its agentic Mooncake rows name the requests that each waits for (`wait_for`). A row with neither that nor a
`timestamp` follows the previous row of its session. Source: Dynamo's documentation, Agent Trace Replay.
"""

from collections.abc import Iterable

from sundog.sim.trace.jsonl_rows import MOONCAKE_BLOCK_TOKENS, MOONCAKE_KEYS, JsonRow
from sundog.sim.trace.record import MAX_SPAN_S, FromFirst, TraceError, TraceRequest, default_id

AGENTIC_KEYS = MOONCAKE_KEYS | {
    "request_id",
    "session_id",
    "wait_for",
    "delay",
    "tool_wait_ms",
    "branches",
    "prefix_reset",
    "tool_events",
}
"""Keys of a row; the last three follow from the others."""
BLOCK_SIZES = tuple(2**power for power in range(3, 13))
"""Possible numbers of tokens per hash id."""


def agentic_rows(path: str, lines: Iterable[bytes]) -> list[TraceRequest]:
    """Return the requests of a trace of agents, `timestamp`, `delay` and `tool_wait_ms` in ms, in order of
    arrival.

    A row that waits arrives `delay` and `tool_wait_ms` after the last of those that it waits for has ended.
    Its own timestamp is the time on the recorded server, and is not used. Without a timestamp in the first
    row all that wait for no other arrive at once; then none of these may have one. Rows lack the number of
    tokens per hash id: it is 512, as in Mooncake's, or the one power of two that fits all of them. Raises
    TraceError.
    """
    found: dict[str, TraceRequest] = {}
    last_of: dict[str, str] = {}
    """Latest row of each session."""
    sizes, from_first, has_times = set(BLOCK_SIZES), FromFirst(), True
    for number, line in enumerate(lines, 1):
        row = JsonRow(path, number, line, AGENTIC_KEYS)
        request_id, session = row.text("request_id") or default_id(number - 1), row.text("session_id")
        if request_id in found:
            raise row.error(f"{request_id!r} was used by an earlier row", "request_id")
        if session is None:
            raise row.error("missing", "session_id")
        # A row without either key follows the last one of its session, as agents' turns do.
        waits = "wait_for" in row.values or "timestamp" in row.values or session not in last_of
        after = row.texts("wait_for") if waits else (last_of[session],)
        for name in after:
            if name not in found:
                raise row.error(f"{name!r} is not the id of an earlier row", "wait_for")
        if after:
            # A bound that keeps rows in order; the client sends it when those that it waits for have ended.
            arrival_s = max(found[name].arrival_s for name in after)
        else:
            has_times = "timestamp" in row.values if number == 1 else has_times
            arrival_s = _own_arrival(row, from_first if has_times else None)
        pauses_s = [row.span(key, scale=1000.0, may_be_zero=True) or 0.0 for key in ("delay", "tool_wait_ms")]
        if not after and any(pauses_s):
            raise row.error("a row without a predecessor cannot have a pause", "delay")
        prompt, ids = row.tokens("input_length", "prompt"), row.whole_numbers("hash_ids")
        if ids is not None:
            # The last block may be left out where it is not full, and so be one id fewer.
            sizes = {size for size in sizes if prompt // size <= len(ids) <= prompt // size + 1}
            if not sizes:
                raise row.error(
                    f"{len(ids)} ids for {prompt} prompt tokens: no number of tokens per id fits", "hash_ids"
                )
        found[request_id] = TraceRequest(
            request_id,
            arrival_s,
            num_prompt_tokens=prompt,
            num_output_tokens=row.tokens("output_length", "output"),
            hash_ids=ids,
            session=session,
            after=after,
            pause_s=sum(pauses_s),
        )
        last_of[session] = request_id
    # Times count from the first row, which need not be the earliest.
    begin_s = min(0.0, *(row.arrival_s for row in found.values()))
    rows = (
        [row._replace(arrival_s=row.arrival_s - begin_s) for row in found.values()]
        if begin_s
        else [*found.values()]
    )
    rows.sort(key=lambda row: row.arrival_s)
    if all(row.hash_ids is None for row in rows):
        return rows
    sizes &= {MOONCAKE_BLOCK_TOKENS} if MOONCAKE_BLOCK_TOKENS in sizes else sizes
    if len(sizes) > 1:
        fit = ", ".join(map(str, sorted(sizes)))
        raise TraceError(path, 1, f"ids of {fit} tokens fit all rows, so contents are not known", "hash_ids")
    (size,) = sizes
    return [row if row.hash_ids is None else row._replace(hash_block_tokens=size) for row in rows]


def _own_arrival(row: JsonRow, from_first: FromFirst | None) -> float:
    """Return the arrival, in seconds, of a row that waits for no other; 0 if rows have no times."""
    if from_first is not None:
        return row.seconds("timestamp", 1000.0, -MAX_SPAN_S, from_first)
    if "timestamp" in row.values:
        raise row.error("the rows before it have none: give all rows one, or none", "timestamp")
    return 0.0
