"""One accepted request from its first token to its last, and what its reader has been given."""

import logging

from actors.core.stop_strings import StopStrings
from actors.front.codec import TokenDecoder
from actors.messages import Finish, Submit
from actors.stream import Delta, DeltaStream

log = logging.getLogger("sundog.front")

MOST_LOSSES = 3
"""A request that was lost with this many engines is given to no other: it may be what kills them."""
UNDECODABLE = "a token could not be turned into text; the server's log says why"


class ActiveRequest:
    """One accepted request."""

    __slots__ = (
        "decoder",
        "has_begun",
        "is_admitted",
        "num_cached_tokens",
        "num_losses",
        "stop_strings",
        "stream",
        "submit",
    )

    def __init__(self, submit: Submit, stream: DeltaStream, decoder: TokenDecoder | None) -> None:
        self.submit = submit
        self.stream = stream
        self.decoder = decoder
        self.stop_strings = StopStrings(submit.sampling.stop)
        self.num_cached_tokens = 0
        self.is_admitted = False
        """Until then, what comes for its id is for an earlier request of that id."""
        self.has_begun = False
        """Whether its reader has been given a token."""
        self.num_losses = 0
        """How many engines were lost with it."""

    @property
    def may_begin_anew(self) -> bool:
        """Whether it may go to another engine: its reader would not notice, and it is not to blame."""
        return not self.has_begun and self.num_losses < MOST_LOSSES

    def decode(self, token: int, time_s: float, finish: Finish | None) -> Delta:
        """The delta that one token adds; with a finish reason if the request ends by it."""
        self.has_begun = True
        try:
            return self._decode(token, time_s, finish)
        except Exception:
            log.exception("a token of %s has no text; it fails alone", self.submit.request_id)
            return Delta(finish_reason="error", error=UNDECODABLE)

    def _decode(self, token: int, time_s: float, finish: Finish | None) -> Delta:
        stopped_by_token = finish is not None and finish.reason == "stop"
        text = "" if self.decoder is None or stopped_by_token else self.decoder.step(token)
        shown, stop = self.stop_strings.feed(text) if self.submit.sampling.stop else (text, None)
        delta = Delta(shown, (token,), 1, None, None, self.num_cached_tokens, (time_s,))
        if stop is not None:
            return delta.merged(Delta(finish_reason="stop", stop_reason=stop))
        if finish is None:
            return delta
        cut_off = "" if self.decoder is None else self.decoder.flush()
        rest = self.stop_strings.flush() + cut_off
        return delta.merged(Delta(rest, finish_reason=finish.reason, stop_reason=finish.stop_reason))
