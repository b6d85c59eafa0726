"""`read_trace`: any known format, recognised by its first line and never by its name.

A folder is read as a recorded run.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sundog.actors.core.records import dataclass
from sundog.sim.files.lines import decode, parse_object, read_lines, shown
from sundog.sim.trace.agentic_rows import agentic_rows
from sundog.sim.trace.csv_rows import DIALECTS, CsvRows
from sundog.sim.trace.documents import DOCUMENTS, Reading
from sundog.sim.trace.jsonl_rows import OWN_FORMAT, bailian_rows, check_header, mooncake_rows, own_rows
from sundog.sim.trace.record import TraceError, TraceRequest, default_id
from sundog.sim.trace.run_rows import run_rows
from sundog.sim.trace.table_rows import (
    FORM,
    LLMSERVINGSIM,
    SIMULATED_BY_LLMSERVINGSIM,
    TableColumns,
    is_parquet,
    parse_columns,
    table_rows,
)
from sundog.sim.trace.tool_rows import (
    TOKEN_BLOCK,
    PrefixNames,
    aiperf_records,
    llmservingsim_rows,
    weka_sessions,
)
from sundog.sim.trace.window import ALL, TracePart

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def load_tokenizer(path: str) -> "Tokenizer":
    """Load a `tokenizer.json`, or the one in a model's folder."""
    from tokenizers import Tokenizer

    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise TraceError(str(file), 1, "there is no such tokenizer file")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 (the library raises Exception itself)
        raise TraceError(str(file), 1, f"not a tokenizer: {error}") from None


class TraceTexts:
    """Converter of texts, a prompt and its answer, to requests."""

    def __init__(self, path: str, tokenizer: "Tokenizer") -> None:
        self._path, self._tokenizer = path, tokenizer
        self._names = PrefixNames()

    def request(self, number: int, index: int, prompt: str, output: str | int) -> TraceRequest:
        """Make one row; raises TraceError if either side has no token."""
        tokens = self._tokenizer.encode(prompt).ids
        if isinstance(output, str):
            num_output = len(self._tokenizer.encode(output, add_special_tokens=False).ids)
        else:
            num_output = output
        for name, count in (("prompt", len(tokens)), ("answer", num_output)):
            if count < 1:
                raise TraceError(self._path, number, f"{count} tokens; at least 1 is needed", name)
        return TraceRequest(
            default_id(index),
            0.0,
            num_prompt_tokens=len(tokens),
            num_output_tokens=num_output,
            hash_ids=self._names.of(tokens),
            hash_block_tokens=TOKEN_BLOCK,
        )


def prompt_rows(path: str, lines: Iterable[bytes], texts: TraceTexts) -> Iterator[TraceRequest]:
    """Read JSON lines with `prompt` and either `output_tokens` or the answer as `completion`."""
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
    """Read the first question and answer of each conversation, as `vllm bench` does.

    One JSON list, or a conversation a line. Conversations of one turn have no answer, and are left out as
    there.
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
    f"a sundog-trace header, {', '.join(dict.fromkeys(d.name for d in DIALECTS.values()))}, results of"
    " LLMServingSim, JSON rows of Mooncake, agentic Mooncake, Qwen-Bailian, AIPerf, LLMServingSim, Weka or"
    " ShareGPT, rows with a prompt, a detailed result of vllm bench or SGLang, a report of guidellm, spans in"
    " OTLP, or the folder of a run; the columns of any other table are named by --columns"
)
TEXTS = ("sharegpt", "prompts")
"""Formats of texts, whose tokens must be counted."""
KEYS = {
    **{key: name for key, (name, _) in DOCUMENTS.items()},
    "sub_requests": "llmservingsim",
    "input_toks": "llmservingsim",
    "metrics": "aiperf",
    "requests": "weka",
    "conversations": "sharegpt",
    "conversation": "sharegpt",
    "prompt": "prompts",
    "chat_id": "bailian",
    "session_id": "agentic",
    "timestamp": "mooncake",
    "input_length": "mooncake",
}
"""Formats by a key of their first object; the first key found decides."""
ROWS = {"llmservingsim": llmservingsim_rows, "aiperf": aiperf_records}
"""Readers of line formats that read the whole file at once."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Trace on disk; every iteration reads it again, in order of arrival.

    Memory is bounded for line formats, unless only a part is read.

    `format` is the name of one of the formats of `traces/README.md`; `header` is our own format's first line,
    empty for the others; `tokenizer` is a file or folder, for formats of texts; `columns` names those of a
    table. Iterating raises TraceError at the first bad row.
    """

    path: str
    format: str
    header: dict[str, Any] = field(default_factory=dict)
    tokenizer: str | None = None
    columns: TableColumns | None = None
    part: TracePart = ALL

    def __iter__(self) -> Iterator[TraceRequest]:
        rows = self._streamed()
        if rows is None:
            rows = iter(self._read()[0])
        return rows if self.part.is_all else iter(self.part.of(rows))

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks on left-out requests, or missing data, for people."""
        if self.format in ("mooncake", "agentic"):
            first = parse_object(self.path, 1, next(read_lines(self.path, TraceError)), TraceError)
            if "timestamp" not in first and not first.get("wait_for"):
                return (f"{self.path} has no timestamps: all arrive at once; --request-rate gives arrivals",)
        return () if self.format in STREAMED else self._read()[1]

    def _streamed(self) -> Iterator[TraceRequest] | None:
        if self.format not in STREAMED:
            return None
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

    def _read(self) -> Reading:
        if self.format == "run":
            return run_rows(self.path, _of_run)
        if self.columns is not None:
            return table_rows(self.path, self.columns)
        if self.format in ROWS:
            return ROWS[self.format](self.path, read_lines(self.path, TraceError))
        documents = _documents(self.path)
        if self.format == "weka":
            return weka_sessions(self.path, documents)
        if len(documents) > 1:
            reason = f"{len(documents)} results in one file: keep one of them in a file of its own"
            raise TraceError(self.path, 2, reason)
        return _READERS[self.format](self.path, documents[0])

    def _texts(self, lines: Iterator[bytes]) -> Iterator[TraceRequest]:
        if self.tokenizer is None:
            reason = f"{self.format} holds texts, whose tokens must be counted: give --tokenizer"
            raise TraceError(self.path, 1, f"{reason}, a tokenizer.json or a model's folder")
        texts = TraceTexts(self.path, load_tokenizer(self.tokenizer))
        rows = sharegpt_rows if self.format == "sharegpt" else prompt_rows
        return rows(self.path, lines, texts)


STREAMED = {
    *TEXTS,
    "bailian",
    "agentic",
    "mooncake",
    "sundog",
    *(dialect.name for dialect in DIALECTS.values()),
}
_READERS = dict(DOCUMENTS.values())


def _documents(path: str) -> list[dict[str, Any]]:
    """Read the JSON objects of a file: one over all lines, or one per line."""
    lines = list(read_lines(path, TraceError))
    if len(lines) > 1 and lines[0].strip() != b"{" and all(line.startswith(b"{") for line in lines if line):
        return [parse_object(path, number, line, TraceError) for number, line in enumerate(lines, 1) if line]
    value = decode(path, 1, b"\n".join(lines), TraceError)
    if not isinstance(value, dict):
        raise TraceError(path, 1, "it must be a JSON object")
    return [value]


def _of_run(path: str, config: Mapping[str, Any]) -> Iterable[TraceRequest]:
    part = TracePart(
        config.get("from_s", 0.0),
        config.get("until_s"),
        config.get("sample_sessions", 1.0),
        config.get("max_idle_s"),
    )
    tokenizer = config.get("tokenizer")
    return islice(read_trace(path, tokenizer, columns=config.get("columns"), part=part), config.get("limit"))


def read_trace(
    path: str, tokenizer: str | None = None, *, columns: str | None = None, part: TracePart = ALL
) -> Trace:
    """Return the trace at `path`, its format recognised; raises TraceError for an unknown format.

    `columns` names those of a table (`sundog.sim.trace.table_rows`), `part` selects a part of it.
    """
    if columns is not None:
        if Path(path).is_dir():
            raise TraceError(path, 1, "--columns is for a table, and this is a folder")
        trace = Trace(path, "table", columns=parse_columns(columns), part=part)
    else:
        trace = replace(_recognised(path, tokenizer), part=part)
    if tokenizer is not None and trace.format not in TEXTS:
        raise TraceError(path, 1, f"{trace.format} counts tokens and holds no texts: leave out --tokenizer")
    return trace


def _recognised(path: str, tokenizer: str | None) -> Trace:
    if Path(path).is_dir():
        return Trace(path, "run")
    if Path(path).suffix == ".toml" and Path(path).is_file():
        reason = (
            "TOML describes traffic and lists no requests: sample them by `sundog workload FILE -o TRACE`"
        )
        raise TraceError(path, 1, reason)
    if is_parquet(path):
        raise TraceError(path, 1, f"Parquet: name its columns by --columns {FORM}")
    lines = read_lines(path, TraceError)
    first = next(lines)
    lines.close()  # type: ignore[attr-defined]
    if first.lstrip().startswith(b"["):
        return Trace(path, "sharegpt", tokenizer=tokenizer)
    if first.strip() == b"{":
        return _of_objects(path, first, _documents(path)[0], tokenizer)
    if first.lstrip().startswith(b"{"):
        return _of_objects(path, first, _first_object(path, first), tokenizer)
    if first.startswith(SIMULATED_BY_LLMSERVINGSIM):
        return Trace(path, "llmservingsim-results", columns=LLMSERVINGSIM)
    try:
        dialect = DIALECTS.get(first.decode("ascii"))
    except UnicodeDecodeError:
        raise TraceError(path, 1, f"the first line is not text: {shown(first)}") from None
    if dialect is None:
        raise TraceError(path, 1, f"not a known header: {shown(first)}; known: {KNOWN}")
    return Trace(path, dialect.name)


def _first_object(path: str, first: bytes) -> dict[str, Any]:
    try:
        return parse_object(path, 1, first, TraceError)
    except TraceError as error:
        try:
            return _documents(path)[0]
        except TraceError:
            raise error from None


def _of_objects(path: str, first: bytes, header: dict[str, Any], tokenizer: str | None) -> Trace:
    if header.get("format") == OWN_FORMAT:
        check_header(path, header)
        return Trace(path, "sundog", header)
    for key, name in KEYS.items():
        if key in header:
            return Trace(path, name, tokenizer=tokenizer if name in TEXTS else None)
    keys = f" with the keys {', '.join(list(header)[:6])}" if first.strip() == b"{" else ""
    raise TraceError(path, 1, f"not a known trace: {shown(first)}{keys}; known: {KNOWN}")
