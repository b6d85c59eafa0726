"""The bare Quart app: no timer that cuts streams, no files, and requests that know when they end."""

from collections.abc import Coroutine

from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, Scope
from quart import Response
from quart.ctx import RequestContext
from quart.wrappers.base import BaseRequestWebsocket
from quart_trio import QuartTrio
from werkzeug.routing import MapAdapter
from werkzeug.wrappers import Response as WerkzeugResponse

from actors.api.edge.request import ApiRequest, NoWebsocket, RequestRunner


class ApiApp(QuartTrio):
    """Quart with requests that know when they end, and routes that do not depend on `Host`."""

    request_class = ApiRequest

    def __call__(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> Coroutine[object, object, None]:
        """ASGI's entrance. Each function on the way to a request costs memory for as long as it is open."""
        if scope["type"] == "http":
            return RequestRunner(self, scope)(receive, send)
        assert scope["type"] == "websocket", "the app has no lifespan"
        return NoWebsocket(self, scope)(receive, send)

    def create_url_adapter(self, request: BaseRequestWebsocket | None) -> MapAdapter | None:
        """Routes match by method and path alone: Quart raises outside any handler for some hosts."""
        if request is None:
            return None
        return self.url_map.bind(
            "localhost", url_scheme=request.scheme, default_method=request.method, path_info=request.path
        )

    async def full_dispatch_request(
        self, request_context: RequestContext | None = None
    ) -> Response | WerkzeugResponse:
        """Quart's, without signals and sessions, of which there are none. Hooks of blueprints hold keys."""
        assert request_context is not None
        blueprints = request_context.request.blueprints
        try:
            result = None
            befores, names = self.before_request_funcs, (None, *reversed(blueprints))
            for before in [each for name in names for each in befores.get(name, ())]:
                if (result := await before()) is not None:  # type: ignore[misc]  # all hooks are async
                    break
            else:
                result = await self.dispatch_request(request_context)
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001  # it is answered
            result = await self.handle_user_exception(error)
        response = await self.make_response(result)
        own = request_context._after_request_functions
        afters = self.after_request_funcs
        theirs = [each for name in (*blueprints, None) for each in reversed(afters.get(name, ()))]
        for after in (*own, *theirs):
            response = await after(response)
        return response


def new_app(name: str, max_body_bytes: int, body_timeout_s: float) -> ApiApp:
    """An app without routes. A larger body is a 413, one that takes longer to arrive a 408."""
    app = ApiApp(name, static_folder=None, template_folder=None)
    app.url_map.merge_slashes = False  # or `//health` is redirected
    app.json.sort_keys = False  # type: ignore[attr-defined]  # the default provider has it
    app.config["MAX_CONTENT_LENGTH"] = max_body_bytes
    app.config["BODY_TIMEOUT"] = body_timeout_s
    app.config["RESPONSE_TIMEOUT"] = None  # Quart's 60 s would cut streams without a word
    return app
