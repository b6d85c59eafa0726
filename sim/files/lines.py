"""The lines of a file, gzipped or plain by its content, with damage reported by line."""

import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

from actors.core.config import ConfigError

ErrorAt = Callable[[str, int, str], ConfigError]
"""The reader's own error, for a file, a line and a reason."""
GZIP_MAGIC = b"\x1f\x8b"
UTF8_MARK = b"\xef\xbb\xbf"


def unzipped(file: IO[bytes]) -> Iterable[bytes]:
    """The lines of gzip data, quickly; where it breaks off, some lines before that are lost."""
    return io.BufferedReader(gzip.GzipFile(fileobj=file), 1 << 16)


def unzipped_to_the_break(file: IO[bytes]) -> Iterable[bytes]:
    """The lines of gzip data, and where it breaks off, all that come before."""
    return gzip.GzipFile(fileobj=file)


def raw_lines(
    path: str, error_at: ErrorAt, unzip: Callable[[IO[bytes]], Iterable[bytes]] = unzipped
) -> Iterator[bytes]:
    """Lines with their ends; gzip data that breaks off raises EOFError there.

    Raises `error_at` for a file that cannot be read, and for damaged gzip data.
    """
    number = 0
    try:
        with Path(path).open("rb") as file:
            gzipped = file.read(2) == GZIP_MAGIC
            file.seek(0)
            for line in unzip(file) if gzipped else file:
                number += 1
                yield line
    except (gzip.BadGzipFile, zlib.error) as error:
        raise error_at(path, number + 1, f"damaged gzip data: {error}") from None
    except OSError as error:
        raise error_at(path, number + 1, f"cannot be read: {error.strerror or error}") from None


def read_lines(path: str, error_at: ErrorAt) -> Iterator[bytes]:
    """Lines without their ends; a UTF-8 mark at the start is dropped.

    Raises `error_at` for an unreadable or empty file, a bad or truncated gzip, and UTF-16 text.
    """
    number = 0
    try:
        for number, line in enumerate(raw_lines(path, error_at), 1):
            if number == 1:
                if line.startswith((b"\xff\xfe", b"\xfe\xff")):
                    raise error_at(path, 1, "the text is UTF-16; save it as UTF-8")
                line = line.removeprefix(UTF8_MARK)
            yield line.rstrip(b"\r\n")
    except EOFError:
        raise error_at(path, number + 1, "the gzip data ends too early: a cut file?") from None
    if not number:
        raise error_at(path, 1, "the file is empty")


def shown(value: bytes, limit: int = 40) -> str:
    """A value for an error message, cut to `limit` bytes."""
    text = value[:limit].decode("utf-8", "backslashreplace")
    return repr(text + ("…" if len(value) > limit else ""))
