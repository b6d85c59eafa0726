"""The lines of a file, gzipped or plain by its content, with damage reported by line."""

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path

from sim.trace.record import TraceError

GZIP_MAGIC = b"\x1f\x8b"
UTF8_MARK = b"\xef\xbb\xbf"


def read_lines(path: str) -> Iterator[bytes]:
    """Lines without their ends; a UTF-8 mark at the start is dropped.

    Raises TraceError for an unreadable or empty file, a bad or truncated gzip, and UTF-16 text.
    """
    number = 0
    try:
        with Path(path).open("rb") as file:
            gzipped = file.read(2) == GZIP_MAGIC
            file.seek(0)
            stream: io.BufferedIOBase = file
            if gzipped:
                stream = io.BufferedReader(gzip.GzipFile(fileobj=file), 1 << 16)
            for number, line in enumerate(stream, 1):
                if number == 1:
                    if line.startswith((b"\xff\xfe", b"\xfe\xff")):
                        raise TraceError(path, 1, "the text is UTF-16; save it as UTF-8")
                    line = line.removeprefix(UTF8_MARK)
                yield line.rstrip(b"\r\n")
    except EOFError:
        raise TraceError(path, number + 1, "the gzip data ends too early: a cut file?") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(path, number + 1, f"damaged gzip data: {error}") from None
    except OSError as error:
        raise TraceError(path, number + 1, f"cannot be read: {error.strerror or error}") from None
    if not number:
        raise TraceError(path, 1, "the file is empty")


def shown(value: bytes, limit: int = 40) -> str:
    """A value for an error message, cut to `limit` bytes."""
    text = value[:limit].decode("utf-8", "backslashreplace")
    return repr(text + ("…" if len(value) > limit else ""))
