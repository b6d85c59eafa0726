"""Those who are told what AsyncLLM accepts, and which engines come and go."""

from collections.abc import Sequence

from actors.kernel.actor import Ref
from actors.messages import EngineDown, EngineUp, Submit, Unserved

News = Submit | EngineUp | EngineDown | Unserved


class Told:
    """Several listeners, told in turn."""

    __slots__ = ("_listeners",)

    def __init__(self, listeners: Sequence[Ref[News]]) -> None:
        self._listeners = tuple(listeners)

    def tell(self, message: News) -> None:
        for listener in self._listeners:
            listener.tell(message)
