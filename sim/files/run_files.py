"""File names in a run's folder, and the run that each file belongs to.

A replay's folder is one run. A server's holds a pair of numbered files for each start.
"""

import fcntl
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from sundog.actors.core.config import ConfigError

REQUESTS = "requests.parquet"
STEPS = "steps.parquet"
SUMMARY = "summary.json"
CONFIG = "config.toml"
JOURNAL = "journal.jsonl.gz"
MESSAGES = "messages.jsonl.gz"
KEPT_TRACE = "trace.jsonl.gz"
"""Requests that clients sent, in our own format."""
OWN = (REQUESTS, STEPS, SUMMARY, CONFIG, JOURNAL, MESSAGES, KEPT_TRACE)
DRAWN = ("perfetto.json", "perfetto.json.gz")
"""Files derived from a run, which can be made again."""
NUMBERED = re.compile(r"(journal|messages)-(\d{4,})\.jsonl\.gz")


class RunError(ConfigError):
    """A folder of a run that cannot be read or written.

    Example:
        >>> import sundog
        >>> sundog.read("docs")
        Traceback (most recent call last):
        sundog.RunError: docs is no run
    """


def numbered(name: str, number: int) -> str:
    """Return `journal-0003.jsonl.gz`: the file of that name of a server's third start."""
    stem, dot, rest = name.partition(".")
    return f"{stem}-{number:04}{dot}{rest}"


def last_number(folder: Path) -> int:
    """Return the number of a server's starts that have written into the folder."""
    found = map(NUMBERED.fullmatch, (path.name for path in folder.iterdir())) if folder.is_dir() else ()
    return max((int(match[2]) for match in found if match), default=0)


def strangers(folder: Path) -> list[str]:
    """Return the entries of a folder that no replay wrote, sorted."""
    return sorted(
        path.name
        for path in folder.iterdir()
        if path.name not in (*OWN, *DRAWN) and not path.name.startswith(f"{STEPS}.")
    )


def check_same_run(first: Path, first_id: str | None, second: Path, second_id: str | None) -> None:
    """Raise RunError, naming both files, if two files of a folder belong to different runs."""
    if first_id != second_id:
        ids = (f"run {each}" if each else "its run has no id" for each in (second_id, first_id))
        raise RunError(f"{second} is of {next(ids)}, and {first.name} of {next(ids)}")


STDOUT = Path("/dev/stdout")


@contextmanager
def whole_file(path: Path | str) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` once the block has ended without error.

    Until then, and after any error, the old file stays. A device, a pipe or standard output is written
    directly. Raises OSError.
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
    """Folder at `place`, written at `path` until it is complete.

    `strangers` returns the entries of a folder for which it must not be replaced.
    """

    def __init__(self, place: Path | str, strangers: Callable[[Path], list[str]]) -> None:
        self.place = Path(place).resolve()
        self.path = self.place.with_name(f"{self.place.name}.partial")
        self._strangers = strangers
        self._lock: int | None = None

    def begin(self) -> None:
        """Create the folder, empty. Raises RunError if it cannot, or must not."""
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
            raise RunError(f"{folder} holds {names[0]}, which belongs to no run: give another folder")

    def trouble(self, error: OSError) -> RunError:
        """Return the error for a failed write, in one line."""
        return RunError(f"cannot write results to {self.place}: {error.strerror or error}")

    def finish(self) -> None:
        """Move the complete folder to its place, and remove what was there."""
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
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()

    def release(self) -> None:
        """Allow another writer; written files stay."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
