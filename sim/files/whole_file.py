"""A file that is whole or absent: written beside its place, and moved there at the end."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

STDOUT = Path("/dev/stdout")


@contextmanager
def whole_file(path: Path | str) -> Iterator[BinaryIO]:
    """A file to write, which stands at `path` once the block has ended well.

    Until then, and after any error, what stood there stands. A device, a pipe or standard output is
    written as it is. Raises OSError.
    """
    if Path(path) == STDOUT:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    place = Path(path).resolve()
    if place.exists() and not place.is_file():
        with place.open("wb") as file:
            yield file
        return
    beside = place.with_name(f"{place.name}.{os.getpid()}.partial")
    try:
        with beside.open("wb") as file:
            yield file
        beside.replace(place)
    except BaseException:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def write_whole(path: Path | str, data: bytes | str) -> None:
    """Write all of a file, or nothing. Raises OSError."""
    with whole_file(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)
