"""GET /: what this is, and where to go on, for whoever opens the server's URL."""

from html import escape
from importlib.resources import files
from string import Template

from quart import Blueprint, Response, request

from actors.api.context import ApiContext, server_version
from actors.api.edge.response import json_response, text_response
from actors.api.routes.documents import HTML

LINKS = {
    "/dashboard": "the live page: queue, batch, KV blocks",
    "/docs": "the routes and their fields",
    "/openapi.json": "the same for programs",
    "/metrics": "metrics for Prometheus",
    "/health": "whether requests are taken",
    "/v1/models": "the models",
}


def welcome_routes(context: ApiContext) -> Blueprint:
    """A page for browsers, the same as JSON for everything else."""
    routes = Blueprint("welcome", __name__)
    page = Template((files("actors.api") / "pages" / "welcome.html").read_text(encoding="utf-8"))
    links = "\n".join(f'<li><a href="{path}">{path}</a>: {what}</li>' for path, what in LINKS.items())
    model = context.model

    @routes.get("/")
    async def show_welcome() -> Response:
        if "text/html" not in request.headers.get("Accept", ""):
            known = {"name": "Sundog", "version": server_version(), "model": model.name}
            return json_response({**known, "max_model_len": model.max_model_len, "links": LINKS})
        url = escape(request.host_url.rstrip("/"))
        text = page.substitute(
            model=escape(model.name), max_model_len=f"{model.max_model_len:,}", links=links, url=url
        )
        return text_response(text.encode(), HTML)

    return routes
