"""Rows of other tools, a JSON object each: LLMServingSim's workloads, AIPerf's records, Weka's sessions.

Sources: the README of LLMServingSim's `workloads/`; AIPerf's documentation of `profile_export.jsonl` and of
Weka traces, whose corpus is SemiAnalysis's for AgentX. Fields unrelated to load are ignored.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any

from sundog.sim.files.lines import parse_object
from sundog.sim.trace.documents import Reading, ReportedRequest, check_request, left_out, requests_of
from sundog.sim.trace.record import MAX_ARRIVAL_S, FromFirst, TraceError, TraceRequest, default_id

TOKEN_BLOCK = 16
"""Tokens per id for files that hold the tokens themselves."""


class PrefixNames:
    """Numbering of token sequences: each full block, including everything before it, has one number."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int, ...], int] = {}

    def of(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Return the names of the full blocks."""
        ids, parent = [], -1
        for start in range(0, len(tokens) - TOKEN_BLOCK + 1, TOKEN_BLOCK):
            key = (parent, *tokens[start : start + TOKEN_BLOCK])
            parent = self._ids.setdefault(key, len(self._ids))
            ids.append(parent)
        return tuple(ids)


class _Fields:
    def __init__(self, path: str, number: int, values: object) -> None:
        if not isinstance(values, dict):
            raise TraceError(path, number, f"{values!r:.40} is not a JSON object")
        self.path, self.number, self.values = path, number, values

    def error(self, reason: str, key: str) -> TraceError:
        return TraceError(self.path, self.number, reason, key)

    def whole(self, key: str) -> int:
        value = self.values.get(key)
        if type(value) is not int:
            raise self.error("missing" if value is None else f"{value!r:.40} is not a whole number", key)
        return value

    def number_or(self, key: str, default: float | None) -> float | None:
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2.0**63:
            raise self.error(f"{value!r:.40} is not a number", key)
        return float(value)

    def whole_numbers(self, key: str) -> tuple[int, ...] | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(each) is int and each >= 0 for each in value):
            raise self.error("it must be a list of whole numbers of at least 0", key)
        return tuple(value)

    def objects(self, key: str) -> "list[_Fields]":
        value = self.values.get(key)
        if not isinstance(value, list):
            raise self.error("it must be a list", key)
        return [_Fields(self.path, self.number, each) for each in value]

    def text_or(self, key: str, default: str) -> str:
        value = self.values.get(key)
        return value if isinstance(value, str) and value else default


def objects(path: str, lines: Iterable[bytes]) -> Iterator[_Fields]:
    """Yield the JSON object on each line."""
    for number, line in enumerate(lines, 1):
        yield _Fields(path, number, parse_object(path, number, line, TraceError))


def llmservingsim_rows(path: str, lines: Iterable[bytes]) -> Reading:
    """Read the requests of a workload of LLMServingSim, alone or in sessions; times and pauses in ns.

    A sub-request comes after the previous one, plus its tool's time.
    """
    names, found, from_first = PrefixNames(), list[TraceRequest](), FromFirst()
    for index, row in enumerate(objects(path, lines)):
        arrival_ns = row.whole("arrival_time_ns")
        arrival_s = from_first(arrival_ns / 1e9, arrival_ns, 1e9)
        if "sub_requests" not in row.values:
            found.append(_token_row(row, names, default_id(index), arrival_s))
            continue
        session = row.text_or("session_id", f"s{index}")
        before: tuple[str, ...] = ()
        pause_s = 0.0
        for turn, sub in enumerate(row.objects("sub_requests")):
            arrival_s += pause_s
            request = _token_row(sub, names, f"{session}.{turn}", arrival_s)
            found.append(request._replace(session=session, after=before, pause_s=pause_s))
            pause_s = (sub.number_or("tool_duration_ns", 0.0) or 0.0) / 1e9
            before = (request.request_id,)
            if not 0 <= pause_s <= MAX_ARRIVAL_S:
                raise sub.error(f"{pause_s:g} s is no pause", "tool_duration_ns")
    return in_order(path, found), ()


def _token_row(row: _Fields, names: PrefixNames, request_id: str, arrival_s: float) -> TraceRequest:
    prompt, tokens = row.whole("input_toks"), row.whole_numbers("input_tok_ids")
    if tokens is not None and len(tokens) != prompt:
        raise row.error(f"{len(tokens)} tokens, and input_toks is {prompt}", "input_tok_ids")
    ids = None if tokens is None else names.of(tokens)
    block = 0 if ids is None else TOKEN_BLOCK
    return TraceRequest(
        request_id,
        arrival_s,
        num_prompt_tokens=prompt,
        num_output_tokens=row.whole("output_toks"),
        hash_ids=ids,
        hash_block_tokens=block,
    )


def in_order(path: str, rows: list[TraceRequest]) -> list[TraceRequest]:
    """Return checked rows in order of arrival; raises TraceError for duplicate ids."""
    rows.sort(key=lambda row: row.arrival_s)
    seen: set[str] = set()
    previous_s = 0.0
    for number, row in enumerate(rows, 1):
        check_request(path, number, row, previous_s)
        previous_s = row.arrival_s
        if row.request_id in seen:
            raise TraceError(path, number, f"{row.request_id!r} is the id of two requests")
        seen.add(row.request_id)
    return rows


def aiperf_records(path: str, lines: Iterable[bytes]) -> Reading:
    """Read the requests of AIPerf's `profile_export.jsonl`, at the times at which they were sent.

    Warm-up requests are left out silently, as in AIPerf's figures. Turns of one conversation are a session.
    """
    asked, num_failed, num_all = list[tuple[int, int, int, str]](), 0, 0
    for row in objects(path, lines):
        about = _Fields(path, row.number, row.values.get("metadata"))
        if about.values.get("benchmark_phase") == "warmup":
            continue
        num_all += 1
        if row.values.get("error") or about.values.get("was_cancelled"):
            num_failed += 1
            continue
        metrics = _Fields(path, row.number, row.values.get("metrics"))
        prompt, output = (
            _Fields(path, row.number, metrics.values.get(name) or {}).whole("value")
            for name in ("input_sequence_length", "output_sequence_length")
        )
        asked.append((about.whole("request_start_ns"), prompt, output, about.text_or("conversation_id", "")))
    turns = Counter(talk for *_, talk in asked)
    first_ns = min((start_ns for start_ns, *_ in asked), default=0)
    rows = [
        ReportedRequest(
            (start_ns - first_ns) / 1e9, prompt, output, talk if talk and turns[talk] > 1 else None
        )
        for start_ns, prompt, output, talk in asked
    ]
    return requests_of(path, rows), left_out(path, num_failed, num_all)


def weka_sessions(path: str, traces: Iterable[dict[str, Any]]) -> Reading:
    """Read the requests of agents recorded by Weka's KV-cache tester, a session each; times in seconds.

    Requests of an agent follow one another; those of a subagent begin when the request before it has ended,
    and the next one waits for them. The pause is `think_time` if the file has it, else the time from the end
    of the previous one, if that is known by `api_time`, else from its beginning.
    """
    found: list[TraceRequest] = []
    names, fresh = dict[tuple[int, int], int](), count()
    for number, values in enumerate(traces, 1):
        trace = _Fields(path, number, values)
        found += _Session(trace, number, names, fresh).rows()
    return in_order(path, found), ()


class _Session:
    def __init__(
        self, trace: _Fields, number: int, names: dict[tuple[int, int], int], fresh: "count[int]"
    ) -> None:
        self._trace, self._number = trace, number
        self._names, self._fresh = names, fresh
        self._block = trace.whole("block_size")
        self._id = trace.text_or("id", f"s{number}")
        self._found: list[TraceRequest] = []
        self._end_s: dict[str, float] = {}
        """End of each request on the recorded server, or its begin if the end is unknown."""

    def rows(self) -> list[TraceRequest]:
        self._chain(self._trace.objects("requests"), (), 0.0)
        if not self._found:
            raise self._trace.error("it has no request", "requests")
        return self._found

    def _chain(self, entries: list[_Fields], before: tuple[str, ...], since_s: float) -> tuple[str, ...]:
        """Add the requests of one agent after those in `before`; return the requests that the agent's end
        waits for.
        """
        for entry in entries:
            begin_s = since_s + (entry.number_or("t", 0.0) or 0.0)
            if entry.values.get("type") == "subagent":
                inner = entry.objects("requests")
                # Times in it count from its own beginning, or from the session's.
                is_relative = any((each.number_or("t", 0.0) or 0.0) < begin_s - since_s for each in inner)
                before = (*before, *self._chain(inner, before[:1], begin_s if is_relative else since_s))
            else:
                before = (self._add(entry, tuple(dict.fromkeys(before)), begin_s),)
        return before

    def _add(self, entry: _Fields, after: tuple[str, ...], begin_s: float) -> str:
        name = f"{self._id}.{len(self._found)}"
        prompt = entry.whole("in")
        ended_s = max((self._end_s[each] for each in after), default=begin_s)
        pause_s = entry.number_or("think_time", max(0.0, begin_s - ended_s)) or 0.0
        if not 0 <= begin_s <= MAX_ARRIVAL_S or not 0 <= pause_s <= MAX_ARRIVAL_S:
            raise entry.error(f"{begin_s:g} s is no instant of a session, or {pause_s:g} s no pause", "t")
        self._end_s[name] = begin_s + (entry.number_or("api_time", 0.0) or 0.0)
        self._found.append(
            TraceRequest(
                name,
                begin_s,
                num_prompt_tokens=prompt,
                num_output_tokens=entry.whole("out"),
                hash_ids=self._contents(entry, prompt),
                hash_block_tokens=self._block,
                session=self._id,
                after=after,
                pause_s=pause_s if after else 0.0,
            )
        )
        return name

    def _contents(self, entry: _Fields, prompt: int) -> tuple[int, ...] | None:
        ids = entry.whole_numbers("hash_ids")
        if ids is None:
            return None
        full = prompt // self._block
        own = [self._name((self._number, i)) for i in ids[: full + 1]]
        return (*own, *(self._name((0, next(self._fresh))) for _ in range(full - len(own))))

    def _name(self, key: tuple[int, int]) -> int:
        return self._names.setdefault(key, len(self._names))
