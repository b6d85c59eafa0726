"""Bodies that operators send: requests to abort, adapters to load and unload."""

from typing import Annotated

from pydantic import Field

from sundog.actors.api.bodies.parsing import Int64, JsonObject, Name


class AbortBody(JsonObject):
    """Ids of answers to abort, as their clients see them; empty for all."""

    request_ids: Annotated[list[Name], Field(max_length=10_000)] = Field(default=[])


class LoadAdapterBody(JsonObject):
    """Adapter by name and folder; with `load_inplace` it replaces one of the same name."""

    lora_name: Name
    lora_path: Name
    load_inplace: bool = False
    is_3d_lora_weight: bool = False


class UnloadAdapterBody(JsonObject):
    """Adapter by name."""

    lora_name: Name
    lora_int_id: Int64 | None = None
