"""What a rank was drawn from: as long as nothing of it changes, the rank stands."""

from math import inf
from typing import Final

from actors.core.request import Request

NEVER: Final = 1 << 62
"""No step has this number."""


class Seen:
    """What a user's policy has looked at since `begin`; what it is shown notes it here.

    Facts of the request itself are not noted: while it waits they change by a late token alone.
    """

    __slots__ = ("anything", "memory", "moment", "num_changes", "request", "until_s", "until_step")

    def __init__(self) -> None:
        self.num_changes = 0
        """How often the policy may have changed its memory."""
        self.begin(None)

    def begin(self, request: Request | None) -> None:
        """Note what is looked at from now on, for a question about this request."""
        self.request = request
        self.anything = False
        """Something that may change at any time: others' counts, who runs, free blocks, service."""
        self.moment = False
        """The time or the step."""
        self.memory = False
        self.until_s = inf
        """The first time that it was told has not come."""
        self.until_step = NEVER
        """The first step that it was told has not come."""

    def look_at(self, request: Request) -> None:
        """Note a look at counts of a request."""
        if request is not self.request:
            self.anything = True
