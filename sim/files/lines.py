"""Lines of a file, gzipped or plain by its content, with damage reported by line.

JSON is parsed strictly: NaN and Infinity are not numbers, and an error names its line. Equal lines are
written to a gzipped file as equal bytes.
"""

import errno
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Protocol

from sundog.actors.core.config import ConfigError
from sundog.actors.core.records import dataclass
from sundog.sim.files.run_files import RunError

ErrorAt = Callable[[str, int, str], ConfigError]
"""Function that makes the reader's own error from a file, a line and a reason."""
GZIP_MAGIC = b"\x1f\x8b"
MOST_LINE_BYTES = 2**26
"""Longest line in bytes; the longest one written here, in a journal, has a few megabytes."""
BLOCK_BYTES = 2**16
"""Bytes of a plain file that are read together."""
UTF8_MARK = b"\xef\xbb\xbf"


class ReadsLines(Protocol):
    """File that returns its next line, or at most the first `size` bytes of it."""

    def readline(self, size: int, /) -> bytes: ...


def unzipped(file: IO[bytes]) -> ReadsLines:
    """Return the lines of gzip data, quickly; if it is truncated, some lines before the break are lost."""
    return io.BufferedReader(gzip.GzipFile(fileobj=file), 1 << 16)


def unzipped_to_the_break(file: IO[bytes]) -> ReadsLines:
    """Return the lines of gzip data, including all before a truncation."""
    return gzip.GzipFile(fileobj=file)


def too_long(path: str, number: int, error_at: ErrorAt) -> ConfigError:
    """Return the error for a line above `MOST_LINE_BYTES`."""
    limit = f"longer than {MOST_LINE_BYTES >> 20} MB"
    return error_at(path, number, f"the line is {limit}: is it a file of lines?")


def _is_gzipped(file: IO[bytes]) -> bool:
    """Return whether a file begins as gzip data does, and go back to its begin."""
    begin = file.read(2)
    file.seek(0)
    return begin == GZIP_MAGIC


def raw_lines(
    path: str, error_at: ErrorAt, unzip: Callable[[IO[bytes]], ReadsLines] = unzipped
) -> Iterator[bytes]:
    """Yield lines with their ends; truncated gzip data raises EOFError at the break.

    Raises `error_at` for a file that cannot be read, for damaged gzip data, and for a line of more than
    `MOST_LINE_BYTES`, which a small gzip file may hold.
    """
    number = 0
    try:
        with Path(path).open("rb") as file:
            source = unzip(file) if _is_gzipped(file) else file
            while line := source.readline(MOST_LINE_BYTES + 1):
                number += 1
                if len(line) > MOST_LINE_BYTES:
                    raise too_long(path, number, error_at)
                yield line
    except (gzip.BadGzipFile, zlib.error) as error:
        raise error_at(path, number + 1, f"damaged gzip data: {error}") from None
    except OSError as error:
        raise error_at(path, number + 1, f"cannot be read: {error.strerror or error}") from None


def read_lines(path: str, error_at: ErrorAt) -> Iterator[bytes]:
    """Yield lines without their ends; a byte order mark at the start is dropped.

    Raises `error_at` for an unreadable or empty file, a bad or truncated gzip, and UTF-16 text.
    """
    parts = _parts(path, error_at)
    first = next(parts, None)
    if first is None:
        raise error_at(path, 1, "the file is empty")
    if first[0].startswith((b"\xff\xfe", b"\xfe\xff")):
        raise error_at(path, 1, "the text is UTF-16; save it as UTF-8")
    first[0] = first[0].removeprefix(UTF8_MARK)
    yield from first
    for lines in parts:
        yield from lines


def _parts(path: str, error_at: ErrorAt) -> Iterator[list[bytes]]:
    """Yield the lines of a file without their ends, one or more at a time."""
    number = 0
    try:
        with Path(path).open("rb") as file:
            if not _is_gzipped(file):
                for lines in _plain_parts(file, path, error_at):
                    number += len(lines)
                    yield lines
                return
        for line in raw_lines(path, error_at):
            number += 1
            yield [line.rstrip(b"\r\n")]
    except EOFError:
        raise error_at(path, number + 1, "the gzip data ends too early: a cut file?") from None
    except OSError as error:
        raise error_at(path, number + 1, f"cannot be read: {error.strerror or error}") from None


def _plain_parts(file: IO[bytes], path: str, error_at: ErrorAt) -> Iterator[list[bytes]]:
    """Yield the lines that end in each block of a file, in a fifth of the time of one after another."""
    number, begun, num_bytes = 0, list[bytes](), 0
    while block := file.read(BLOCK_BYTES):
        lines = block.split(b"\n")
        begun.append(lines[0])
        num_bytes += len(lines[0])
        if num_bytes > MOST_LINE_BYTES:
            raise too_long(path, number + 1, error_at)
        if len(lines) > 1:
            lines[0], begun = b"".join(begun), [lines.pop()]
            number, num_bytes = number + len(lines), len(begun[0])
            yield [line.rstrip(b"\r") for line in lines] if b"\r" in block or b"\r" in lines[0] else lines
    if num_bytes:
        yield [b"".join(begun).rstrip(b"\r")]


def shown(value: bytes, limit: int = 40) -> str:
    """Return a value for an error message, cut to `limit` bytes."""
    text = value[:limit].decode("utf-8", "backslashreplace")
    return repr(text + ("…" if len(value) > limit else ""))


Row = dict[str, Any]


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _each_key_once(pairs: list[tuple[str, Any]]) -> Row:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} occurs twice")
    return row


DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
STRICT_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_each_key_once)
"""Decoder that detects duplicate keys, at five times the cost."""
KEY = re.compile(r'"\s*:')


def _decoded(text: str) -> Any:
    """Decode JSON; raises ValueError for a duplicate key, of which the first value would be lost."""
    value = DECODER.decode(text)
    num_keys = len(value) if isinstance(value, dict) else 0
    # More than the outermost keys: those of objects inside, text that looks like a key, or a key twice.
    return STRICT_DECODER.decode(text) if len(KEY.findall(text)) > num_keys else value


def decode(path: str, number: int, text: bytes, error_at: ErrorAt) -> Any:
    """Return the JSON value of a text that begins with line `number`; raises `error_at` if it is invalid."""
    try:
        return _decoded(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise error_at(path, number, f"not UTF-8: byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        line = text.split(b"\n")[error.lineno - 1]
        reason = f"not JSON: {error.msg} at character {error.colno} of {shown(line)}"
        raise error_at(path, number + error.lineno - 1, reason) from None
    except (ValueError, RecursionError) as error:
        raise error_at(path, number, f"not JSON: {error}") from None


def is_text(value: str) -> bool:
    """Return whether UTF-8 can encode the text: JSON may hold half a surrogate pair."""
    return not any("\ud800" <= char <= "\udfff" for char in value)


def parse_object(path: str, number: int, line: bytes, error_at: ErrorAt) -> Row:
    """Return the JSON object on a line; raises `error_at` for anything else."""
    if not line.strip():
        raise error_at(path, number, "the line is blank; remove it")
    value = decode(path, number, line, error_at)
    if not isinstance(value, dict):
        raise error_at(path, number, f"{shown(line)} is not a JSON object")
    return value


@dataclass(slots=True)
class JsonLines:
    """JSON objects of one file, a line each, gzipped or plain; `number` is the latest line.

    A file that is truncated, because its writer is still at work or was killed, gives its whole lines, and
    then `cut_off` is set.
    """

    path: Path
    error_at: ErrorAt
    number: int = 0
    cut_off: bool = False

    def __iter__(self) -> Iterator[Row]:
        path = str(self.path)
        try:
            for line in raw_lines(path, self.error_at, unzipped_to_the_break):
                if not line.endswith(b"\n"):
                    # Only a writer that was stopped in the middle leaves such a line.
                    self.cut_off = True
                    return
                self.number += 1
                yield parse_object(path, self.number, line.rstrip(b"\r\n"), self.error_at)
        except EOFError:
            self.cut_off = True

    def error(self, reason: str) -> ConfigError:
        """Return the error for a fault in the latest line."""
        return self.error_at(str(self.path), self.number, reason)

    def whole(self) -> Iterator[Row]:
        """Yield the objects of a file that must be complete; its last line may lack its end."""
        for line in read_lines(str(self.path), self.error_at):
            self.number += 1
            yield parse_object(str(self.path), self.number, line, self.error_at)


COMPRESSION = 1
"""Level of compression, of 1 to 9: 3 would take twice as long on lines like these, for 4 % fewer bytes."""


class LineWriter:
    """Writer of a new file in a folder, which it creates; an existing file is never overwritten.

    Raises RunError, which names the file, when it cannot write or the file was removed; after that it only
    closes.
    """

    def __init__(self, path: Path, *, is_zipped: bool = True) -> None:
        self._path = path
        self._is_broken = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._raw = path.open("xb")
        except OSError as error:
            raise self._trouble(error) from None
        self._file: IO[bytes] | gzip.GzipFile = self._raw
        if is_zipped:  # no time stamp or name inside, so that equal lines are equal files
            self._file = gzip.GzipFile("", "wb", COMPRESSION, self._raw, mtime=0)

    def write(self, lines: Iterable[str]) -> None:
        """Write lines, given without their ends."""
        self._try("".join(line + "\n" for line in lines).encode())

    def flush(self) -> None:
        """Let readers see all lines so far."""
        self._try(None)

    def _try(self, data: bytes | None) -> None:
        if self._is_broken:
            return
        try:
            if data is None:
                self._file.flush()
            else:
                self._file.write(data)
            self._check_it_is_there()
        except OSError as error:
            self._is_broken = True
            raise self._trouble(error) from None

    def close(self) -> None:
        """Complete the file, if it could be written until now."""
        if self._is_broken:
            with suppress(OSError):
                self._raw.close()
            return
        self._is_broken = True
        try:
            with self._raw:
                self._check_it_is_there()
                self._file.close()
        except OSError as error:
            raise self._trouble(error) from None

    def _check_it_is_there(self) -> None:
        if os.fstat(self._raw.fileno()).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "it was removed while being written")

    def _trouble(self, error: OSError) -> RunError:
        return RunError(f"cannot write {self._path}: {error.strerror or error}")
