"""GET /v1/models and /v1/models/<name>: the model that this server has, and its adapters."""

from quart import Blueprint

from actors.api.context import ApiContext


def models_routes(context: ApiContext) -> Blueprint:
    """The two routes; a name may contain slashes, as on the Hugging Face hub."""
    routes = Blueprint("models", __name__)

    @routes.get("/v1/models")
    async def list_models() -> dict[str, object]:
        return {"object": "list", "data": context.cards}

    @routes.get("/v1/models/<path:name>")
    async def show_model(name: str) -> dict[str, object]:
        return context.model.card(context.check_model(name))

    return routes
