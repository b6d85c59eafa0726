"""What adapts Hypercorn, which serves HTTP/1.1 and HTTP/2 on Trio, and Quart, which routes.

`serve_http` listens, serves and stops; `quart_app` makes the app and carries its answers.
"""

from actors.http.listener import PortInUse, reserved
from actors.http.server import HttpSettings, Tls, serve_http

__all__ = ["HttpSettings", "PortInUse", "Tls", "reserved", "serve_http"]
