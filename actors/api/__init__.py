"""The HTTP surface, OpenAI-compatible: what enters and leaves the graph over a socket."""

from actors.api.app import create_app
from actors.api.edge.server import HttpSettings, serve_http
from actors.api.service import LLM, ServedModel

__all__ = ["LLM", "HttpSettings", "ServedModel", "create_app", "serve_http"]
