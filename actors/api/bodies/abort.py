"""The body of POST /abort_requests."""

from typing import Annotated

from pydantic import Field

from actors.api.bodies.bounds import Name
from actors.api.bodies.parsing import JsonObject


class AbortBody(JsonObject):
    """The ids of answers to end, as their clients see them; none is all."""

    request_ids: Annotated[list[Name], Field(max_length=10_000)] = Field(default=[])
