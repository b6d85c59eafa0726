"""HTTP API, compatible with OpenAI's and Anthropic's: request bodies, answers and errors.

`routes/` has a file for each family of routes, `bodies/` the request bodies, `answers/` the response shapes,
`errors.py` the errors, `exposition/` the metrics for operators. To add a field, add it to its body and to
`Generate`; to add a route, add it to `routes/` and to `openapi.py`.
"""

from sundog.actors.api.address import PortInUse
from sundog.actors.api.app import create_app
from sundog.actors.api.context import ServedModel
from sundog.actors.api.in_flight import LLM
from sundog.actors.http.server import serve_http

__all__ = ["LLM", "PortInUse", "ServedModel", "create_app", "serve_http"]
