"""Lines written to a gzipped file, the same lines as the same bytes."""

import errno
import gzip
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from sim.files.run_files import RunError

COMPRESSION = 3
"""Of 1 to 9: the higher ones cost more than they save on lines like these."""


class ZippedLines:
    """A new file in a folder, which it makes; an older file of that name is never overwritten.

    Raises RunError, which names the file, when it cannot write; after that it only closes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_broken = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._raw = path.open("xb")
        except OSError as error:
            raise self._trouble(error) from None
        # No time stamp or name inside, so that equal lines are equal files.
        self._file = gzip.GzipFile("", "wb", COMPRESSION, self._raw, mtime=0)

    def write(self, lines: Iterable[str]) -> None:
        """Add lines, given without their ends."""
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
                if os.fstat(self._raw.fileno()).st_nlink == 0:
                    raise FileNotFoundError(errno.ENOENT, "it was removed while it was written")
            else:
                self._file.write(data)
        except OSError as error:
            self._is_broken = True
            raise self._trouble(error) from None

    def close(self) -> None:
        """Complete the file, if it could be written so far."""
        if self._is_broken:
            with suppress(OSError):
                self._raw.close()
            return
        self._is_broken = True
        try:
            self._file.close()
            self._raw.close()
        except OSError as error:
            raise self._trouble(error) from None

    def _trouble(self, error: OSError) -> RunError:
        return RunError(f"cannot write {self._path}: {error.strerror or error}")
