"""What an engine process logs, where its stderr is not the server's: said over the link, logged there."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import trio

from actors.kernel.actor import ActorDied, Ref
from runtime.worker.messages import Heard, Logged


class ToServer(logging.Handler):
    """Tells the Door every record, from whichever thread, in order."""

    def __init__(self, door: Ref[Heard]) -> None:
        super().__init__()
        self._door = door
        self._token = trio.lowlevel.current_trio_token()

    def emit(self, record: logging.LogRecord) -> None:
        said = Logged(record.name, record.levelno, self.format(record))
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._tell, said)

    def _tell(self, said: Logged) -> None:
        with suppress(ActorDied):  # nobody is there to read it
            self._door.tell(said)


@contextmanager
def told(door: Ref[Heard]) -> Iterator[None]:
    """Have all that is logged in this process told to the Door."""
    handler = ToServer(door)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


def log_again(said: Logged) -> None:
    """Log here what was logged there."""
    logging.getLogger(said.logger).log(said.level, "%s", said.text)
