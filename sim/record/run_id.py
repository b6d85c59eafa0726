"""The id of a run, which every file of the run carries.

A replay's follows from what goes into it, so that the same run gives the same bytes; a server's is
new each time.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from sim.files.run_files import REQUESTS

LENGTH = 16


def replay_id(options: Mapping[str, object], folder: Path | str) -> str:
    """The id of a replay with these options, paths in which are relative to `folder`.

    Of files it is the contents that count, wherever they lie; O(their bytes).
    """
    known = {name: content(value, folder) for name, value in options.items()}
    text = json.dumps([sundog_version(), known], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


def content(value: object, folder: Path | str) -> object:
    """The value of an option; of one that names a file, what is in the file."""
    if not isinstance(value, str) or not value:
        return value
    stem, is_code, name = value.partition(".py:")  # A policy is given as FILE.py:NAME.
    # Without its "..", so that it is found before the folder is there.
    path = Path(os.path.normpath(Path(folder).resolve() / (f"{stem}.py" if is_code else value)))
    try:
        path = path / REQUESTS if path.is_dir() else path
        return [hashlib.sha256(path.read_bytes()).hexdigest(), name]
    except (OSError, ValueError):
        return value  # No file, or one of which its reader will say what is wrong.


def server_id() -> str:
    """The id of a server that starts now."""
    return secrets.token_hex(LENGTH // 2)


def sundog_version() -> str:
    """The installed version; empty where Sundog runs without having been installed."""
    try:
        return version("sundog")
    except PackageNotFoundError:
        return ""
