"""Detection of stop strings in a text that arrives in pieces."""


class StopStrings:
    """Detector that holds back the last characters while they may begin a stop string.

    With `are_shown` the text ends with the stop string, and nothing is held back.
    """

    __slots__ = ("_are_shown", "_held", "_hold", "_stops")

    def __init__(self, stops: tuple[str, ...], are_shown: bool = False) -> None:
        self._stops = stops
        self._are_shown = are_shown
        self._hold = max([len(stop) for stop in stops]) - 1 if stops else 0
        self._held = ""
        """Last characters of the text: held back, or already shown if `are_shown`."""

    def feed(self, text: str, may_stop: bool = True) -> tuple[str, str | None]:
        """Return the text that may be shown now, and the stop string that was met, if any.

        The stop string is the one that ends first, within this piece, and only if it `may_stop`. The text
        shown ends before the stop string, or includes it.
        """
        num_held, text = len(self._held), self._held + text
        first = num_held + 1
        stop = self._met(text, first) if may_stop else None
        begin = num_held if self._are_shown else 0
        if stop is not None:
            self._held = ""
            position = text.index(stop, max(0, first - len(stop)))
            return text[begin : position + (len(stop) if self._are_shown else 0)], stop
        kept = len(text) - min(self._hold, len(text))
        self._held = text[kept:]
        return text[begin:] if self._are_shown else text[:kept], None

    def _met(self, text: str, first: int) -> str | None:
        ends = {stop: text.find(stop, max(0, first - len(stop))) + len(stop) for stop in self._stops}
        found = [stop for stop, end in ends.items() if end >= len(stop)]
        return min(found, key=lambda stop: ends[stop], default=None)

    def flush(self) -> str:
        """Return the held-back text at the end."""
        held, self._held = self._held, ""
        return "" if self._are_shown else held
