"""A step while it is planned; `commit` makes a Batch of it."""

from sundog.actors.core.batch import Blocked
from sundog.actors.core.request import Request


class Draft:
    """Step while it is planned: the decisions so far, and the remaining budget.

    One record serves all steps of a scheduler, since most steps need none of its containers; `begin` a step.
    `reserved_blocks` are kept for running requests while others are admitted before them.
    """

    __slots__ = (
        "admitted",
        "blocked",
        "budget",
        "has_members",
        "has_prefill",
        "holds_prefills",
        "new_blocks",
        "num_decodes",
        "preempted",
        "preempted_for",
        "quotas",
        "reserved_blocks",
        "scheduled",
        "step",
        "threshold",
    )

    def __init__(self) -> None:
        self.scheduled: dict[str, tuple[Request, int]] = {}
        self.new_blocks: list[tuple[str, tuple[int, ...]]] = []
        """New blocks of running requests, each of which takes them once."""
        self.admitted: list[tuple[Request, bool]] = []
        self.preempted: list[Request] = []
        self.preempted_for: list[str] = []
        self.quotas: dict[str, int | None] = {}
        """Quotas of running requests, called for before any decision and constant throughout."""
        self.begin(0, 0, 0)

    def begin(self, step: int, budget: int, threshold: int) -> None:
        """Forget the last step."""
        self.step = step
        self.budget = budget
        self.threshold = threshold
        self.num_decodes = 0
        self.has_members = False
        """Whether the members of the lockstep have got their tokens."""
        self.holds_prefills = False
        """Whether prefills are held back in this step (`cadence.py`)."""
        self.has_prefill = False
        """Whether this step gave a request part of its prompt and then preempted it."""
        self.reserved_blocks = 0
        self.blocked: Blocked | None = None
        if self.scheduled:
            self.scheduled = {}
        if self.new_blocks:
            self.new_blocks = []
        if self.admitted:
            self.admitted = []
        if self.preempted:
            self.preempted, self.preempted_for = [], []
        if self.quotas:
            self.quotas = {}
