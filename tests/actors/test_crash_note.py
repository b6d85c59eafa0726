"""Crash notes for messages of any kind, including those whose `repr` fails."""

from sundog.actors.kernel.actor import explain
from sundog.actors.kernel.mailbox import MailboxStatistics
from sundog.actors.messages import Generate

SEEN = MailboxStatistics(1, 0, 0, None)


def test_a_message_that_cannot_be_written_out_does_not_hide_the_crash() -> None:
    """Python refuses to write integers of more than 4,300 digits."""
    error = RuntimeError("the crash")
    explain(error, "async-llm", Generate(5, priority=10**5000, request_id="r1"), SEEN)
    assert error.__notes__[0] == "in actor async-llm, handling a Generate of request r1"
