"""`read_trace`: any known format, told apart by its first line and never by its name.

A folder is taken for a recorded run.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.files.lines import decode, parse_object, read_lines, shown
from sim.files.run_files import REQUESTS
from sim.trace.agentic_rows import agentic_rows
from sim.trace.csv_rows import DIALECTS, CsvRows
from sim.trace.jsonl_rows import OWN_FORMAT, bailian_rows, check_header, mooncake_rows, own_rows
from sim.trace.record import TraceError, TraceRequest, arrival_problem, default_id, tokens_problem

if TYPE_CHECKING:
    from tokenizers import Tokenizer

COLUMNS = ["request_id", "arrival_s", "num_prompt_tokens", "num_output_tokens", "tenant"]


def run_rows(folder: str) -> Iterator[TraceRequest]:
    """The requests of a run directory, with the lengths that their answers came to."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = str(Path(folder) / REQUESTS)
    try:
        table = pq.read_table(path, columns=COLUMNS)
    except FileNotFoundError:
        raise TraceError(folder, 1, f"the folder has no {REQUESTS}: is it a run's?") from None
    except (OSError, pa.ArrowException) as error:
        raise TraceError(path, 1, f"cannot be read: {error}") from None
    previous_s = 0.0
    for index, row in enumerate(table.to_pylist()):
        *numbers, tenant = (row[name] for name in COLUMNS)
        request = TraceRequest(*numbers)._replace(tenant=tenant)
        _check(path, index + 1, request, previous_s)
        previous_s = request.arrival_s
        yield request


def bench_result_rows(path: str, values: dict[str, Any]) -> Iterator[TraceRequest]:
    """The requests of a detailed result of `vllm bench serve`, by its lists of lengths.

    `start_times` are on any clock; without them everything arrives at once. Requests of one instant keep the
    file's order.
    """
    prompts, outputs = values.get("input_lens"), values.get("output_lens")
    starts = values.get("start_times")
    for name, column in (("input_lens", prompts), ("output_lens", outputs)):
        if not isinstance(column, list) or not column:
            raise TraceError(path, 1, "it must be a list: save the result with details", name)
        if not all(type(value) is int for value in column):
            raise TraceError(path, 1, "it must be a list of whole numbers", name)
    assert prompts is not None and outputs is not None
    starts = [0.0] * len(prompts) if starts is None else starts
    if not isinstance(starts, list) or not all(type(s) in (int, float) for s in starts):
        raise TraceError(path, 1, "it must be a list of seconds", "start_times")
    if not len(prompts) == len(outputs) == len(starts):
        raise TraceError(
            path, 1, f"{len(prompts)} input_lens, {len(outputs)} output_lens and {len(starts)} start_times"
        )
    if not all(map(math.isfinite, starts)):
        raise TraceError(path, 1, "an instant is not finite", "start_times")
    first_s, previous_s = min(starts), 0.0
    rows = sorted(zip(starts, prompts, outputs, strict=True), key=lambda row: row[0])
    for index, (start, *tokens) in enumerate(rows):
        request = TraceRequest(default_id(index), float(start - first_s), *tokens)
        _check(path, index + 1, request, previous_s)
        previous_s = request.arrival_s
        yield request


def _check(path: str, row: int, request: TraceRequest, previous_s: float) -> None:
    problems = (
        (arrival_problem(request.arrival_s, previous_s), "arrival"),
        (tokens_problem(request.num_prompt_tokens, "prompt"), "prompt tokens"),
        (tokens_problem(request.num_output_tokens, "output"), "output tokens"),
    )
    for reason, column in problems:
        if reason:
            raise TraceError(path, row, f"row {row}: {reason}", column)


BLOCK_TOKENS = 16
"""Tokens that one id names; other block sizes than its multiples and divisors are refused."""


def load_tokenizer(path: str) -> "Tokenizer":
    """A `tokenizer.json`, or the folder of a model with one."""
    from tokenizers import Tokenizer

    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise TraceError(str(file), 1, "there is no such tokenizer file")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 (the library raises Exception itself)
        raise TraceError(str(file), 1, f"not a tokenizer: {error}") from None


class TraceTexts:
    """Turns pairs of prompt and answer into requests."""

    def __init__(self, path: str, tokenizer: "Tokenizer") -> None:
        self._path, self._tokenizer = path, tokenizer
        self._ids: dict[tuple[int, ...], int] = {}

    def request(self, number: int, index: int, prompt: str, output: str | int) -> TraceRequest:
        """Make one row; raises TraceError where either side has no token."""
        tokens = self._tokenizer.encode(prompt).ids
        if isinstance(output, str):
            num_output = len(self._tokenizer.encode(output, add_special_tokens=False).ids)
        else:
            num_output = output
        for name, count in (("prompt", len(tokens)), ("answer", num_output)):
            if count < 1:
                raise TraceError(self._path, number, f"{count} tokens; at least 1 is needed", name)
        return TraceRequest(
            default_id(index), 0.0, len(tokens), num_output, self._hash_ids(tokens), BLOCK_TOKENS
        )

    def _hash_ids(self, tokens: list[int]) -> tuple[int, ...]:
        """A number for each full block and all before it."""
        ids, parent = [], -1
        for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            key = (parent, *tokens[start : start + BLOCK_TOKENS])
            parent = self._ids.setdefault(key, len(self._ids))
            ids.append(parent)
        return tuple(ids)


def prompt_rows(path: str, lines: Iterable[bytes], texts: TraceTexts) -> Iterator[TraceRequest]:
    """JSON lines with `prompt` and either `output_tokens` or the answer as `completion`."""
    for index, line in enumerate(lines):
        values = parse_object(path, index + 1, line, TraceError)
        prompt = _text(path, index + 1, values, "prompt")
        output = values.get("output_tokens")
        if output is None:
            output = _text(path, index + 1, values, "completion")
        elif type(output) is not int:
            raise TraceError(path, index + 1, f"{output!r} is not a whole number", "output_tokens")
        yield texts.request(index + 1, index, prompt, output)


def sharegpt_rows(path: str, lines: Iterable[bytes], texts: TraceTexts) -> Iterator[TraceRequest]:
    """The first question and answer of each conversation, as `vllm bench` takes them.

    One JSON list, or a conversation a line. Conversations of one turn have no answer to repeat, and
    are left out as there.
    """
    index = 0
    for number, values in _conversations(path, lines):
        turns = values.get("conversations", values.get("conversation"))
        if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
            raise TraceError(path, number, "it must be a list of turns", "conversations")
        if len(turns) < 2:
            continue
        prompt, answer = (_text(path, number, turn, "value") for turn in turns[:2])
        yield texts.request(number, index, prompt, answer)
        index += 1
    if not index:
        raise TraceError(path, 1, "there is no conversation with an answer")


def _conversations(path: str, lines: Iterable[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each conversation with its line, or with its place in the list."""
    rest = iter(lines)
    first = next(rest)
    if first.lstrip().startswith(b"{"):
        yield 1, parse_object(path, 1, first, TraceError)
        for number, line in enumerate(rest, 2):
            yield number, parse_object(path, number, line, TraceError)
        return
    values = decode(path, 1, b"\n".join([first, *rest]), TraceError)
    if not isinstance(values, list):
        raise TraceError(path, 1, "it must be a list of conversations")
    for number, value in enumerate(values, 1):
        if not isinstance(value, dict):
            raise TraceError(path, number, "conversation is not a JSON object")
        yield number, value


def _text(path: str, number: int, values: dict[str, Any], key: str) -> str:
    value = values.get(key)
    if not isinstance(value, str):
        reason = "missing" if value is None else f"{value!r:.40} is not text"
        raise TraceError(path, number, reason, key)
    return value


KNOWN = (
    f"a sundog-trace header, {', '.join(DIALECTS)}, JSON rows of Mooncake, agentic Mooncake, Qwen-Bailian or"
    " ShareGPT, rows with a prompt, a detailed result of vllm bench, or the folder of a run"
)
TEXTS = ("sharegpt", "prompts")
"""Formats of texts, whose tokens must be counted."""
KEYS = {
    "input_lens": "vllm-bench",
    "conversations": "sharegpt",
    "conversation": "sharegpt",
    "prompt": "prompts",
    "chat_id": "bailian",
    "session_id": "agentic",
    "timestamp": "mooncake",
}
"""Formats by a key of their first row; the first that is there decides."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace on disk; every iteration reads it again, in arrival order, in bounded memory.

    `format` is sundog, azure, bench, servegen, burstgpt, mooncake, agentic, bailian, sharegpt, prompts,
    vllm-bench or run; `header` is our own format's first line, empty for the others; `tokenizer`
    is a file or folder, for formats of texts. Iterating raises TraceError at the first bad row.
    """

    path: str
    format: str
    header: dict[str, Any] = field(default_factory=dict)
    tokenizer: str | None = None

    def __iter__(self) -> Iterator[TraceRequest]:
        if self.format in ("run", "vllm-bench"):
            return self._recorded()
        lines = read_lines(self.path, TraceError)
        if self.format in TEXTS:
            return self._texts(lines)
        first = next(lines)
        if self.format == "bailian":
            return bailian_rows(self.path, chain([first], lines))
        if self.format == "agentic":
            return iter(agentic_rows(self.path, chain([first], lines)))
        if self.format == "mooncake":
            return mooncake_rows(self.path, chain([first], lines))
        if self.format == "sundog":
            return own_rows(self.path, check_header(self.path, self.header), lines)
        return CsvRows(self.path, DIALECTS[first.decode("ascii")]).read(lines)

    def _recorded(self) -> Iterator[TraceRequest]:
        if self.format == "run":
            return run_rows(self.path)
        values = decode(self.path, 1, b"\n".join(read_lines(self.path, TraceError)), TraceError)
        if not isinstance(values, dict):
            raise TraceError(self.path, 1, "it must be a JSON object")
        return bench_result_rows(self.path, values)

    def _texts(self, lines: Iterator[bytes]) -> Iterator[TraceRequest]:
        if self.tokenizer is None:
            reason = f"{self.format} holds texts, whose tokens must be counted: give --tokenizer"
            raise TraceError(self.path, 1, f"{reason}, a tokenizer.json or a model's folder")
        texts = TraceTexts(self.path, load_tokenizer(self.tokenizer))
        rows = sharegpt_rows if self.format == "sharegpt" else prompt_rows
        return rows(self.path, lines, texts)


def read_trace(path: str, tokenizer: str | None = None) -> Trace:
    """The trace at `path`, its format recognised; raises TraceError for an unknown format."""
    trace = _recognised(path, tokenizer)
    if tokenizer is not None and trace.format not in TEXTS:
        raise TraceError(path, 1, f"{trace.format} counts tokens and holds no texts: leave out --tokenizer")
    return trace


def _recognised(path: str, tokenizer: str | None) -> Trace:
    if Path(path).is_dir():
        return Trace(path, "run")
    lines = read_lines(path, TraceError)
    first = next(lines)
    lines.close()  # type: ignore[attr-defined]
    if first.lstrip().startswith(b"["):
        return Trace(path, "sharegpt", tokenizer=tokenizer)
    if first.strip() == b"{":
        return Trace(path, "vllm-bench")
    if first.lstrip().startswith(b"{"):
        return _of_objects(path, first, tokenizer)
    try:
        dialect = DIALECTS.get(first.decode("ascii"))
    except UnicodeDecodeError:
        raise TraceError(path, 1, f"the first line is not text: {shown(first)}") from None
    if dialect is None:
        raise TraceError(path, 1, f"not a known header: {shown(first)}; known: {KNOWN}")
    return Trace(path, dialect.name)


def _of_objects(path: str, first: bytes, tokenizer: str | None) -> Trace:
    """A trace whose first line is a JSON object, told by its keys."""
    header = parse_object(path, 1, first, TraceError)
    if header.get("format") == OWN_FORMAT:
        check_header(path, header)
        return Trace(path, "sundog", header)
    for key, name in KEYS.items():
        if key in header:
            return Trace(path, name, tokenizer=tokenizer if name in TEXTS else None)
    raise TraceError(path, 1, f"not a known trace: {shown(first)}; known: {KNOWN}")
