"""Output folder of a run, which is complete or absent.

A run that Ctrl-C or a crash ends leaves `NAME.partial` beside its place, which can be read and is marked as
partial. One that cannot work (a malformed trace, a full disk) leaves nothing.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from sundog.actors.config import EngineConfig
from sundog.actors.core.config import ConfigError
from sundog.actors.kernel.actor import Actor
from sundog.actors.messages import Heard
from sundog.sim.files.run_files import KEPT_TRACE, WholeFolder, strangers
from sundog.sim.record.client_record import ClientColumns
from sundog.sim.record.columns import Columns, MovedColumns
from sundog.sim.record.journal_file import JournalFile, MessageFile
from sundog.sim.record.journal_rows import Header
from sundog.sim.record.run_directory import write_facts
from sundog.sim.record.run_writer import OnDisk, RunWriter
from sundog.sim.trace.jsonl_rows import write_trace
from sundog.sim.trace.record import TraceRequest

log = logging.getLogger("sundog")

MOST_JOURNALLED = 100_000
"""Most requests of a run with a journal: it is a quarter of a run's time, and too long to be read."""


class Kind(NamedTuple):
    """Kind of a run; kinds without a journal were recorded by clients only."""

    command: str
    columns: type[Columns]
    has_journal: bool


REPLAYED = Kind("sundog replay", Columns, True)
MEASURED = Kind("sundog bench", ClientColumns, False)


def kind_of_replay(config: EngineConfig) -> Kind:
    """Return the kind of a replay: moves have columns of their own, and no journal supports them."""
    return Kind("sundog replay", MovedColumns if config.moves else Columns, not config.passes_on)


class RunOutput:
    """Folder of a run while it is written; use it in a `with`, and `finish` it.

    Give the replay its `sink`, `listeners` and `tap`, which is None without `messages`; then `rows` are all
    requests and steps, to sum up. `header` carries the run's id. With `journal` None there is one up to
    `MOST_JOURNALLED` requests. Raises RunError when it cannot write.
    """

    def __init__(
        self,
        place: Path | str,
        header: Header,
        options: Mapping[str, object],
        messages: bool = False,
        kind: Kind = REPLAYED,
        journal: bool | None = None,
    ) -> None:
        self._kind = kind
        self._folder = WholeFolder(place, strangers)
        self._header, self._options = header, options
        self._has_messages = messages
        self._has_journal = kind.has_journal and journal is not False
        self._most_journalled = math.inf if journal else MOST_JOURNALLED
        self._is_done = False

    def __enter__(self) -> "RunOutput":
        self._folder.begin()
        path, run_id = self._folder.path, self._header.run
        try:
            self.sink = RunWriter(path, self._header.replicas, run_id, self._kind.columns)
            self._journal = JournalFile(
                path, self._header, most_requests=self._most_journalled, is_live=False
            )
            self.listeners: list[Actor[Heard]] = [self._journal] if self._has_journal else []
            self.tap = MessageFile(path, run_id) if self._has_messages else None
        except ConfigError:
            self._folder.discard()
            raise
        return self

    @property
    def has_left_out_journal(self) -> bool:
        """Whether the run was too long for a journal, which was therefore removed."""
        return self._journal.num_left < 0

    def rows(self) -> OnDisk:
        """Return all rows passed to the sink, after the replay."""
        if self.tap is not None:
            self.tap.close()
        return self.sink.close()

    def keep_trace(self, rows: Sequence[TraceRequest]) -> None:
        """Write the requests that clients are going to send; raises RunError."""
        size = max((row.hash_block_tokens for row in rows if row.hash_ids is not None), default=0)
        path = str(self._folder.path / KEPT_TRACE)
        try:
            write_trace(path, rows, provenance=self._kind.command, hash_block_tokens=size)
        except OSError as error:
            raise self._folder.trouble(error) from None

    def finish(self, summary: str) -> None:
        """Mark the run as complete, and write its figures, which are JSON."""
        self._write_facts(summary, None)
        self._is_done = True
        self._folder.finish()

    def finish_part(self, summary: str, until_s: float) -> None:
        """Mark the run as broken off at a time of its own; the figures cover the part before."""
        self._write_facts(summary, until_s)

    def _write_facts(self, summary: str, until_s: float | None) -> None:
        try:
            write_facts(
                self._folder.path, self._header.run, summary, self._options, until_s, self._kind.command
            )
        except OSError as error:
            raise self._folder.trouble(error) from None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_done:
            return
        with suppress(ConfigError):
            self.rows()
        if error is None or is_mistake(error):
            self._folder.discard()
        else:
            self._folder.release()
            log.warning("the run broke off; what there is of it is in %s", self._folder.path)


def is_mistake(error: BaseException) -> bool:
    """Return whether every error means that the run cannot work, and none is an interruption or a crash."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_mistake, error.exceptions))
    return isinstance(error, ConfigError)
