"""Watch a growing text for stop strings, which may arrive in pieces."""


class StopStrings:
    """Holds back the last characters while they could still begin a stop string."""

    __slots__ = ("_held", "_hold", "_stops")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._hold = max((len(stop) for stop in stops), default=1) - 1
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """The text that may be shown now, and the stop string that it met, if any.

        The text ends before the stop string, which is never shown.
        """
        text = self._held + text
        found = [(text.index(stop), stop) for stop in self._stops if stop in text]
        if found:
            position, stop = min(found)
            self._held = ""
            return text[:position], stop
        shown = len(text) - min(self._hold, len(text))
        self._held = text[shown:]
        return text[:shown], None

    def flush(self) -> str:
        """The text held back, once no more comes."""
        held, self._held = self._held, ""
        return held
