"""Folder in which a long command stores its results, so that it can be resumed.

A file in it has the command's options. The same command resumes, another one is refused by name, and while
one command writes there, others are locked out.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sundog.actors.config import ConfigError


@dataclass(frozen=True, slots=True)
class KeptFolder:
    """Results folder of a command, `what` in words; its file `asked` has the command's options."""

    path: Path
    what: str
    asked: str

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Create the folder, and lock others out until the end; raises ConfigError."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            folder = os.open(self.path, os.O_RDONLY)
        except FileExistsError:
            raise self.stranger() from None
        except OSError as error:
            raise self.trouble(error) from None
        try:
            self._lock(folder)
            yield
        finally:
            os.close(folder)

    def _lock(self, folder: int) -> None:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another {self.what} is writing to {self.path}: wait for its end, or give another --out"
            ) from None
        except OSError as error:
            raise self.trouble(error) from None

    def begin(self, asked: Mapping[str, object]) -> None:
        """Write the options into the empty folder, or resume with the same ones; raises ConfigError."""
        text = json.dumps(asked, indent=1, default=str) + "\n"
        file = self.path / self.asked
        try:
            if file.exists():
                before = json.loads(file.read_text(encoding="utf-8"))
                return self._check(before, json.loads(text))
            if any(self.path.iterdir()):
                raise self.stranger()
            self.write(self.asked, text)
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(f"{file} is not JSON: {error}") from None
        except OSError as error:
            raise self.trouble(error) from None

    def _check(self, before: object, now: dict[str, object]) -> None:
        if not isinstance(before, dict):
            raise ConfigError(f"{self.path / self.asked} is no record of a {self.what}")
        for name in dict.fromkeys([*now, *before]):
            was, is_now = (each.get(name) for each in (before, now))
            if was != is_now:
                change = f"{name} {json.dumps(was)}, not {json.dumps(is_now)}"
                raise ConfigError(
                    f"{self.path} holds another {self.what} ({change}): give another --out, or remove it"
                )

    def write(self, name: str, text: str) -> None:
        """Write a file of the folder, whole or not at all."""
        begun = self.path / f".{name}"
        begun.write_text(text, encoding="utf-8")
        begun.replace(self.path / name)

    def stranger(self) -> ConfigError:
        """Return the error for a folder with other contents."""
        return ConfigError(f"--out is {self.path}, which is no {self.what}'s folder: give an empty one")

    def trouble(self, error: OSError) -> ConfigError:
        """Return the error for a folder that cannot be written."""
        return ConfigError(f"cannot write results to {self.path}: {error.strerror or error}")
