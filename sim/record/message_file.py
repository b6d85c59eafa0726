"""Every message on disk: `messages.jsonl.gz`, one line each, in the order in which they were sent.

    {"messages":1,"run":"9f86d081884c7d65"}
    {"time":0.5,"from":"async-llm","to":"router","message":"Submit","request_id":"r1",…}

The same in every world. Answers are lines too, from the actor that was asked. Fields are the message's
own; of prompts, texts and long lists only the length is kept.
"""

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from sim.files.lines import LineWriter
from sim.files.run_files import MESSAGES

VERSION = 1
MOST_ITEMS = 8
"""Of a list; longer ones are given as `{"items": n}`."""


class MessageFile:
    """A Tap that writes a new file into a directory, which it makes; `close` it at the end.

    Times are seconds since the first message; `run_id` is that of the journal beside it. Raises
    RunError when it cannot write.
    """

    def __init__(self, directory: Path | str, run_id: str | None, name: str = MESSAGES) -> None:
        self._file = LineWriter(Path(directory) / name)
        self._file.write([_encode({"messages": VERSION, "run": run_id})])
        self._origin_s: float | None = None

    def close(self) -> None:
        """The run is over: complete the file."""
        self._file.close()

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
        self._file.write([_encode(row)])


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
