"""The bodies that operators send: answers to end, adapters to load and unload."""

from typing import Annotated

from pydantic import Field

from sundog.actors.api.bodies.parsing import Int64, JsonObject, Name


class AbortBody(JsonObject):
    """The ids of answers to end, as their clients see them; none is all."""

    request_ids: Annotated[list[Name], Field(max_length=10_000)] = Field(default=[])


class LoadAdapterBody(JsonObject):
    """An adapter by its name and folder; `load_inplace` lets it take the place of one that has the name."""

    lora_name: Name
    lora_path: Name
    load_inplace: bool = False
    is_3d_lora_weight: bool = False


class UnloadAdapterBody(JsonObject):
    """An adapter by its name."""

    lora_name: Name
    lora_int_id: Int64 | None = None
