"""JSON, read strictly: NaN and Infinity are no numbers, and an error names its line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from actors.core.config import ConfigError
from actors.core.records import dataclass
from sim.files.lines import ErrorAt, raw_lines, read_lines, shown, unzipped_to_the_break

Row = dict[str, Any]


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def decode(path: str, number: int, text: bytes, error_at: ErrorAt) -> Any:
    """The JSON value of a text that begins with line `number`; raises `error_at` if it is none."""
    try:
        return DECODER.decode(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise error_at(path, number, f"not UTF-8: byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        line = text.split(b"\n")[error.lineno - 1]
        reason = f"not JSON: {error.msg} at character {error.colno} of {shown(line)}"
        raise error_at(path, number + error.lineno - 1, reason) from None
    except (ValueError, RecursionError) as error:
        raise error_at(path, number, f"not JSON: {error}") from None


def is_text(value: str) -> bool:
    """Whether UTF-8 can say it: JSON may hold half a surrogate pair."""
    return not any("\ud800" <= char <= "\udfff" for char in value)


def parse_object(path: str, number: int, line: bytes, error_at: ErrorAt) -> Row:
    """The JSON object on a line; raises `error_at` for anything else."""
    if not line.strip():
        raise error_at(path, number, "the line is blank; remove it")
    value = decode(path, number, line, error_at)
    if not isinstance(value, dict):
        raise error_at(path, number, f"{shown(line)} is not a JSON object")
    return value


@dataclass(slots=True)
class JsonLines:
    """The JSON objects of one file, a line each, gzipped or plain; `number` is the latest line.

    A file that breaks off, because its writer is still at work or was killed, gives its whole lines, and then
    `cut_off` is set.
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
        """What is wrong with the latest line."""
        return self.error_at(str(self.path), self.number, reason)

    def whole(self) -> Iterator[Row]:
        """The same where a file that breaks off is an error; its last line may lack its end."""
        for line in read_lines(str(self.path), self.error_at):
            self.number += 1
            yield parse_object(str(self.path), self.number, line, self.error_at)
