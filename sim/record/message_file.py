"""Every message on disk: `messages.jsonl.gz`, one line each, in the order in which they were sent.

    {"time":0.5,"from":"async-llm","to":"router","message":"Submit","request_id":"r1",…}

The same in every world. Answers are lines too, from whoever was asked. Fields are the message's
own; of prompts, texts and long lists only the length is kept.
"""

import gzip
import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from actors.core.config import ConfigError

NAME = "messages.jsonl.gz"
MOST_ITEMS = 8
"""Of a list; longer ones are given as `{"items": n}`."""
COMPRESSION = 3


class MessageFile:
    """A Tap that writes into a directory, which it makes; use it in a `with`.

    Times are seconds since `origin_s`, by default the first message's. Raises ConfigError when it
    cannot write.
    """

    def __init__(self, directory: Path | str, origin_s: float | None = None) -> None:
        path = Path(directory) / NAME
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._raw: IO[bytes] = path.open("wb")
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error}") from None
        self._file = gzip.GzipFile("", "wb", COMPRESSION, self._raw, mtime=0)
        self._origin_s = origin_s

    def __enter__(self) -> "MessageFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()
        self._raw.close()

    def __call__(self, time_s: float, sender: str, receiver: str, message: object) -> None:
        if self._origin_s is None:
            self._origin_s = time_s
        row = {
            "time": time_s - self._origin_s,
            "from": sender,
            "to": receiver,
            "message": type(message).__name__,
            **_fields(message),
        }
        self._file.write(_encode(row).encode() + b"\n")


_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def _fields(message: Any) -> dict[str, Any]:
    """A record's fields but those left to None, a list of nothing, or their default of False."""
    if is_dataclass(message):
        values = {field.name: getattr(message, field.name) for field in fields(message)}
    else:
        values = message._asdict() if hasattr(message, "_asdict") else {}
    shown = {name: _value(name, value) for name, value in values.items()}
    return {name: value for name, value in shown.items() if value not in (None, [], False)}


def _value(name: str, value: Any) -> Any:
    if name == "prompt" and isinstance(value, str):
        return {"characters": len(value)}
    if isinstance(value, (int, float, str)) or value is None:
        return value
    if isinstance(value, tuple) and not hasattr(value, "_asdict"):
        if not value:
            return None
        if name.endswith("token_ids") or name == "prompt" or len(value) > MOST_ITEMS:
            return {"items": len(value)}
        return [_value("", item) for item in value]
    if is_dataclass(value) or hasattr(value, "_asdict"):
        return _fields(value)
    return type(value).__name__


def message_tap(
    directory: Path | str | None, wanted: bool, option: str
) -> AbstractContextManager[MessageFile | None]:
    """The tap that writes every message into the directory that `option` names, if it is wanted."""
    if not wanted:
        return nullcontext()
    if directory is None:
        raise ConfigError(f"--messages needs a folder to write them to: give {option} DIR")
    return MessageFile(directory)
