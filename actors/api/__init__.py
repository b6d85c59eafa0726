"""The HTTP surface, compatible with OpenAI's and Anthropic's: what clients send and receive.

`routes/` has a file for each family of routes, `bodies/` what clients may send, `answers/` what they receive,
`errors.py` what they receive instead, `exposition/` what operators see. To add a field, add it to its body
and to `Generate`; to add a route, add it to `routes/` and to `openapi.py`.
"""

from sundog.actors.api.address import PortInUse
from sundog.actors.api.app import create_app
from sundog.actors.api.context import ServedModel
from sundog.actors.api.in_flight import LLM
from sundog.actors.http.server import serve_http

__all__ = ["LLM", "PortInUse", "ServedModel", "create_app", "serve_http"]
