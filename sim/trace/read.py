"""`read_trace`: any known format, told apart by its first line and never by its name.

A folder is taken for a recorded run.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from sim.files.lines import parse_object, read_lines, shown
from sim.trace.csv_rows import DIALECTS, CsvRows
from sim.trace.jsonl_rows import OWN_FORMAT, bailian_rows, check_header, mooncake_rows, own_rows
from sim.trace.record import TraceError, TraceRequest

KNOWN = (
    f"a sundog-trace header, {', '.join(DIALECTS)}, JSON rows of Mooncake, Qwen-Bailian or"
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
    "timestamp": "mooncake",
}
"""Formats by a key of their first row; the first that is there decides."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace on disk; every iteration reads it again, in arrival order, in bounded memory.

    `format` is sundog, azure, bench, servegen, burstgpt, mooncake, bailian, sharegpt, prompts,
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
        if self.format == "mooncake":
            return mooncake_rows(self.path, chain([first], lines))
        if self.format == "sundog":
            return own_rows(self.path, check_header(self.path, self.header), lines)
        return CsvRows(self.path, DIALECTS[first.decode("ascii")]).read(lines)

    def _recorded(self) -> Iterator[TraceRequest]:
        from sim.trace.run_rows import bench_result_rows, parse_result, run_rows

        if self.format == "run":
            return run_rows(self.path)
        text = b"\n".join(read_lines(self.path, TraceError))
        return bench_result_rows(self.path, parse_result(self.path, text))

    def _texts(self, lines: Iterator[bytes]) -> Iterator[TraceRequest]:
        from sim.trace.text_rows import Texts, load_tokenizer, prompt_rows, sharegpt_rows

        if self.tokenizer is None:
            reason = f"{self.format} holds texts, whose tokens must be counted: give --tokenizer"
            raise TraceError(self.path, 1, f"{reason}, a tokenizer.json or a model's folder")
        texts = Texts(self.path, load_tokenizer(self.tokenizer))
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
