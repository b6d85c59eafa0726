"""Files and folders that are whole or absent: written next to their place, and moved there at the end.

While a folder is written it is called `NAME.partial`. What stood at its place is replaced in one go, and
only if it is of the same kind. Two writers of one place exclude each other.
"""

import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from sim.files.run_files import RunError

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


class WholeFolder:
    """The folder at `place`; `path` is where it is written now.

    `strangers` names the entries of a folder for which it must not be replaced.
    """

    def __init__(self, place: Path | str, strangers: Callable[[Path], list[str]]) -> None:
        self.place = Path(place).resolve()
        self.path = self.place.with_name(f"{self.place.name}.partial")
        self._strangers = strangers
        self._lock: int | None = None

    def begin(self) -> None:
        """Make the folder, empty. Raises RunError if it cannot, or must not."""
        try:
            self._check(self.place)
            self._check(self.path)
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path, os.O_RDONLY)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for entry in self.path.iterdir():
                entry.unlink()
        except BlockingIOError:
            self.release()
            raise RunError(f"{self.path} is being written by another run") from None
        except OSError as error:
            self.release()
            raise self.trouble(error) from None

    def _check(self, folder: Path) -> None:
        if not folder.exists():
            return
        if not folder.is_dir():
            raise RunError(f"cannot write results to {folder}: it is a file")
        if os.path.ismount(folder):
            raise RunError(f"cannot replace {folder}, a mounted volume: give a folder within it")
        if names := self._strangers(folder):
            raise RunError(f"{folder} holds {names[0]}, which is of no run: give another folder")

    def trouble(self, error: OSError) -> RunError:
        """Why nothing can be written, in one line."""
        return RunError(f"cannot write results to {self.place}: {error.strerror or error}")

    def finish(self) -> None:
        """The folder is whole: put it in its place, and remove what stood there."""
        old = self.place.with_name(f"{self.place.name}.replaced")
        try:
            if self.place.exists():
                shutil.rmtree(old, ignore_errors=True)
                self.place.rename(old)
            self.path.rename(self.place)
        except OSError as error:
            raise self.trouble(error) from None
        finally:
            self.release()
        shutil.rmtree(old, ignore_errors=True)

    def discard(self) -> None:
        """Remove the folder: nothing of it is worth keeping."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()

    def release(self) -> None:
        """Let another writer in; what has been written stays where it is."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
