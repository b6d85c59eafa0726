"""The bare Quart app: no timer that cuts streams, no files, and requests that know when they end."""

from quart.wrappers.base import BaseRequestWebsocket
from quart_trio import QuartTrio
from werkzeug.routing import MapAdapter

from actors.api.edge.request import ApiRequest, NoWebsocket, RequestRunner


class ApiApp(QuartTrio):
    """Quart with requests that know when they end, and routes that do not depend on `Host`."""

    asgi_http_class = RequestRunner
    asgi_websocket_class = NoWebsocket
    request_class = ApiRequest

    def create_url_adapter(self, request: BaseRequestWebsocket | None) -> MapAdapter | None:
        """Routes match by method and path alone: Quart raises outside any handler for some hosts."""
        if request is None:
            return None
        return self.url_map.bind(
            "localhost", url_scheme=request.scheme, default_method=request.method, path_info=request.path
        )


def new_app(name: str, max_body_bytes: int, body_timeout_s: float) -> ApiApp:
    """An app without routes. A larger body is a 413, one that takes longer to arrive a 408."""
    app = ApiApp(name, static_folder=None, template_folder=None)
    app.url_map.merge_slashes = False  # or `//health` is redirected
    app.json.sort_keys = False  # type: ignore[attr-defined]  # the default provider has it
    app.config["MAX_CONTENT_LENGTH"] = max_body_bytes
    app.config["BODY_TIMEOUT"] = body_timeout_s
    app.config["RESPONSE_TIMEOUT"] = None  # Quart's 60 s would cut streams without a word
    return app
