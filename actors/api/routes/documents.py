"""GET /openapi.json and /docs: the routes and their fields, for programs and for people, offline."""

from importlib.resources import files

from quart import Blueprint, Response

from actors.api.context import ApiContext, server_version
from actors.api.edge.response import json_response, text_response
from actors.api.openapi import document

HTML = "text/html; charset=utf-8"


def documents_routes(context: ApiContext) -> Blueprint:
    """The two routes; the page draws what the document says."""
    routes = Blueprint("documents", __name__)
    described = document(server_version(), has_key=context.has_key)
    page = (files("actors.api") / "pages" / "docs.html").read_bytes()

    @routes.get("/openapi.json")
    async def show_document() -> Response:
        return json_response(described)

    @routes.get("/docs")
    async def show_page() -> Response:
        return text_response(page, HTML)

    return routes
