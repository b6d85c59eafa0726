"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter: adapters come and go while the server runs.

In vLLM's shapes, and as there only where the server was started for it. What runs with an adapter goes on
when it is unloaded.
"""

import logging

from quart import Blueprint, Response, request

from actors.api.bodies.lora import LoadAdapterBody, UnloadAdapterBody
from actors.api.bodies.parsing import parse_request
from actors.api.context import ApiContext
from actors.api.edge.request import current_request
from actors.api.edge.response import text_response
from actors.api.errors import INVALID_INPUT, ApiError
from actors.core.params.adapter import Adapter

log = logging.getLogger("sundog.api")


def lora_routes(context: ApiContext) -> Blueprint:
    """The two routes."""
    routes = Blueprint("lora", __name__)
    adapters = context.adapters

    @routes.before_request
    async def check() -> None:
        if not context.model.loads_adapters:
            raise ApiError(
                404,
                f"Unknown URL: {request.method} {request.path}; start the server with --enable-lora"
                " --allow-runtime-lora-updating",
            )

    @routes.post("/v1/load_lora_adapter")
    async def load_adapter() -> Response:
        body = await parse_request(LoadAdapterBody, current_request(), context)
        name = body.lora_name
        if name == context.model.name:
            raise _invalid(f"The lora adapter '{name}' conflicts with a served base model.")
        if name in adapters and not body.load_inplace:
            raise _invalid(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in"
                " place, set 'load_inplace' to True."
            )
        adapters[name] = Adapter(name, body.lora_path)
        log.info("adapter %r is loaded from %r", name, body.lora_path)
        return _done(f"Success: LoRA adapter '{name}' added successfully.")

    @routes.post("/v1/unload_lora_adapter")
    async def unload_adapter() -> Response:
        body = await parse_request(UnloadAdapterBody, current_request(), context)
        if adapters.pop(body.lora_name, None) is None:
            raise ApiError(404, f"The lora adapter '{body.lora_name}' cannot be found.")
        log.info("adapter %r is unloaded", body.lora_name)
        return _done(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    return routes


def _invalid(message: str) -> ApiError:
    return ApiError(400, message, code=INVALID_INPUT)


def _done(message: str) -> Response:
    return text_response(message.encode(), "text/plain; charset=utf-8")
