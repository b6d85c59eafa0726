"""The HTTP surface, OpenAI-compatible: everything that enters or leaves the graph over a socket.

`routes/` holds a file for each family of routes, `bodies/` what clients may send, `answers/` what they get,
`errors.py` what they get instead, `exposition/` what operators are shown.
"""

from sundog.actors.api.address import PortInUse
from sundog.actors.api.app import create_app
from sundog.actors.api.context import ServedModel
from sundog.actors.api.in_flight import LLM
from sundog.actors.http.server import serve_http

__all__ = ["LLM", "PortInUse", "ServedModel", "create_app", "serve_http"]
