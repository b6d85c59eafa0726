"""The listener that says from time to time how many drafts are accepted."""

import logging

from actors.core.acceptance import Acceptance
from actors.kernel.actor import Actor
from actors.kernel.clock import now_s
from actors.messages import Heard, StepOutput

log = logging.getLogger("sundog.engine")
EVERY_S = 10.0


class AcceptanceLog(Actor[Heard]):
    """Logs what became of the drafts since its last line: every ten seconds, when all is idle, at the end."""

    def __init__(self) -> None:
        super().__init__("acceptance-log")
        self._counts = Acceptance()
        self._said_s = -EVERY_S

    def handle(self, message: Heard) -> None:
        if not isinstance(message, StepOutput):
            return
        if message.accepted:
            self._counts.add(message.batch.drafts, message.accepted)
        is_idle = not (message.num_running or message.num_waiting)
        if is_idle or now_s() >= self._said_s + EVERY_S:
            self._say()

    async def closed(self) -> None:
        self._say()

    def _say(self) -> None:
        counts = self._counts
        if not counts.num_drafts:
            return
        self._counts, self._said_s = Acceptance(), now_s()
        log.info(
            "drafts: %d of %d accepted (%.1f %%), %.2f tokens a verification, by position %s",
            counts.num_accepted_tokens,
            counts.num_draft_tokens,
            100 * counts.rate,
            counts.mean_length,
            ", ".join(f"{rate:.3f}" for rate in counts.rates),
        )
