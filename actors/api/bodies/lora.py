"""The bodies of POST /v1/load_lora_adapter and /v1/unload_lora_adapter."""

from actors.api.bodies.bounds import Int64, Name
from actors.api.bodies.parsing import JsonObject


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
