"""What a server leaves: a journal for each time it was started, and perhaps every message."""

import logging
from dataclasses import replace
from pathlib import Path

from actors.kernel.actor import Actor
from actors.messages import Heard
from sim.files.run_files import JOURNAL, MESSAGES, RunError, last_number, numbered
from sim.record.journal_file import JournalFile
from sim.record.journal_rows import Header
from sim.record.message_file import MessageFile
from sim.record.run_id import server_id

log = logging.getLogger("sundog.record")


class ServerRecord:
    """A server's journal, and with `messages` every message: files with a number of their own.

    Files of earlier starts stay: the journal of a crash is the one most worth reading. Use it
    in a `with`. Raises RunError when it cannot write, or where a replay's run lies; what cannot be
    completed at the end is a warning, as a listener that fails while it serves is.
    """

    def __init__(self, directory: Path | str, header: Header, messages: bool = False) -> None:
        folder = Path(directory)
        if (folder / JOURNAL).exists():
            raise RunError(f"{folder} holds the run of a replay: give another folder")
        number = last_number(folder) + 1
        header = replace(header, run=server_id())
        self.listeners: list[Actor[Heard]] = [JournalFile(folder, header, numbered(JOURNAL, number))]
        self.tap = MessageFile(folder, header.run, numbered(MESSAGES, number)) if messages else None

    def __enter__(self) -> "ServerRecord":
        return self

    def __exit__(self, *_: object) -> None:
        if self.tap is not None:
            try:
                self.tap.close()
            except RunError as error:
                log.warning("the messages are not whole: %s", error)
