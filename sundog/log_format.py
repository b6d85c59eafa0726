"""How a server's log is written: lines for people, or a JSON object a line for programs."""

import json
import logging
import sys


class JsonLines(logging.Formatter):
    """Time, level, logger and message, and the numbers that a record carries as `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to_stderr(kind: str) -> None:
    """Write what is logged to stderr, as `kind` says: text or json, and as JSON Python's warnings, too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if kind == "json" else logging.Formatter("%(message)s"))
    logging.basicConfig(handlers=[handler])
    logging.captureWarnings(writes_json())


def let_it_remark() -> None:
    """Show what is no warning: for the process that people start, whose lines are few."""
    logging.getLogger("sundog").setLevel(logging.INFO)


def writes_json() -> bool:
    """Whether each line of the log is an object."""
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)
