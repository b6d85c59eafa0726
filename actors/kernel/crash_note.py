"""The note of a crash: actor, message, request, and what the mailbox had seen."""

import logging

from actors.kernel.mailbox import MailboxStatistics

log = logging.getLogger("sundog.actors")

MOST_CHARACTERS = 500


def explain(error: BaseException, actor: str, message: object, seen: MailboxStatistics) -> None:
    """Add the note to the error; `message` is None between messages."""
    doing = "between messages" if message is None else f"handling {_shown(message)}"
    request_id = getattr(message, "request_id", None)
    of_request = "" if request_id is None else f" of request {request_id}"
    error.add_note(f"in actor {actor}, {doing}{of_request}")
    if seen.num_handled:
        error.add_note(
            f"mailbox of {actor}: {seen.num_handled} taken, {seen.num_waiting} waiting,"
            f" at most {seen.most_waiting} at a time"
        )


def _shown(message: object) -> str:
    """A message in few words, even if its repr fails: the crash must be reported."""
    try:
        return repr(message)[:MOST_CHARACTERS]
    except Exception:
        log.debug("a message of a crash cannot be shown", exc_info=True)
        return f"a {type(message).__name__}"
