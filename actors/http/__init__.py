"""The HTTP protocols: sockets, TLS, HTTP/1.1, and the one seam to Quart.

`serve_http` serves any ASGI app on Trio; `quart_app` makes Quart one that suits it. Nothing outside this room
imports a library that carries HTTP.
"""

from actors.http.listener import PortInUse, reserved
from actors.http.server import HttpSettings, serve_http
from actors.http.tls import Tls

__all__ = ["HttpSettings", "PortInUse", "Tls", "reserved", "serve_http"]
