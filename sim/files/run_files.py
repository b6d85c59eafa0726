"""The names of the files that a run leaves in its folder, and the run that each belongs to.

A replay's folder is one run. A server's holds a pair of numbered files for each time it was started.
"""

import re
from pathlib import Path

from actors.core.config import ConfigError

REQUESTS = "requests.parquet"
STEPS = "steps.parquet"
SUMMARY = "summary.json"
CONFIG = "config.toml"
JOURNAL = "journal.jsonl.gz"
MESSAGES = "messages.jsonl.gz"
OWN = (REQUESTS, STEPS, SUMMARY, CONFIG, JOURNAL, MESSAGES)
DRAWN = ("perfetto.json", "perfetto.json.gz")
"""What is made of a run, and may be made again."""
NUMBERED = re.compile(r"(journal|messages)-(\d{4,})\.jsonl\.gz")


class RunError(ConfigError):
    """A run's folder that cannot be read or written as it stands."""


def numbered(name: str, number: int) -> str:
    """`journal-0003.jsonl.gz`: the file of that name of a server's third start."""
    stem, dot, rest = name.partition(".")
    return f"{stem}-{number:04}{dot}{rest}"


def last_number(folder: Path) -> int:
    """Count the times that a server has written into the folder."""
    found = map(NUMBERED.fullmatch, (path.name for path in folder.iterdir())) if folder.is_dir() else ()
    return max((int(match[2]) for match in found if match), default=0)


def strangers(folder: Path) -> list[str]:
    """The entries of a folder that no replay wrote, sorted."""
    return sorted(
        path.name
        for path in folder.iterdir()
        if path.name not in (*OWN, *DRAWN) and not path.name.startswith(f"{STEPS}.")
    )


def check_same_run(first: Path, first_id: str | None, second: Path, second_id: str | None) -> None:
    """Two files of one folder are of the same run; raises RunError that names both."""
    if first_id != second_id:
        ids = (f"run {each}" if each else "a run without an id" for each in (second_id, first_id))
        raise RunError(f"{second} is of {next(ids)}, and {first.name} of {next(ids)}")
