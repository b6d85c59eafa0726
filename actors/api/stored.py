"""Responses that clients may come back to: the last thousand, while the server runs."""

from collections import OrderedDict
from dataclasses import dataclass, field

from actors.api.errors import NO_RESPONSE, ApiError, shown
from actors.api.json_object import Json
from actors.api.translated.response import ResponseObject

MOST_STORED = 1000


@dataclass(slots=True)
class StoredResponse:
    """A response, the conversation up to its question, and the id of the engine's request."""

    response: ResponseObject
    conversation: list[Json]
    request_id: str

    @property
    def so_far(self) -> list[Json]:
        """What a response that follows it goes on from."""
        return [*self.conversation, *self.response.answer()]


@dataclass(slots=True)
class StoredResponses:
    """The oldest is forgotten first; unless it `keeps` any, every response is."""

    keeps: bool = True
    _kept: "OrderedDict[str, StoredResponse]" = field(default_factory=OrderedDict)

    def keep(self, name: str, stored: StoredResponse) -> None:
        if not self.keeps:
            return
        self._kept[name] = stored
        if len(self._kept) > MOST_STORED:
            self._kept.popitem(last=False)

    def get(self, name: str, param: str = "response_id") -> StoredResponse:
        """Raises 404 for one that is not kept, or not any more."""
        if not self.keeps:
            why = "with --api-processes above 1 none is kept, send the whole conversation"
            raise ApiError(404, f"There is no response {shown(name)}: {why}.", param, NO_RESPONSE)
        stored = self._kept.get(name)
        if stored is None:
            raise ApiError(404, f"There is no response {shown(name)}, or not any more.", param, NO_RESPONSE)
        return stored

    def forget(self, name: str) -> None:
        """Raises 404 like `get`."""
        self.get(name)
        del self._kept[name]
