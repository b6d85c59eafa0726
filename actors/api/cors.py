"""Pages of other origins: browsers let them call this server only if it says so. By default it does not."""

from collections.abc import Sequence
from dataclasses import dataclass

from quart import Quart, Response, request

from actors.api.errors import ApiError
from actors.http.quart_app import text_response

METHODS = "GET, POST, PUT, DELETE, OPTIONS"
EXPOSED = "X-Request-Id, Retry-After"
MAX_AGE_S = "600"
ANY = "*"


@dataclass(frozen=True, slots=True)
class Cors:
    """The origins whose pages may call; `*` lets all."""

    origins: Sequence[str]

    def install(self, app: Quart) -> None:
        """Answer browsers' questions before keys are asked for, and mark every answer."""
        app.before_request(self._answer_preflight)
        app.after_request(self._mark)

    def _allows(self, origin: str) -> bool:
        return ANY in self.origins or origin in self.origins

    async def _answer_preflight(self) -> Response | None:
        asked = request.headers.get("Access-Control-Request-Method")
        origin = request.headers.get("Origin")
        if request.method != "OPTIONS" or asked is None or origin is None:
            return None
        if not self._allows(origin):
            raise ApiError(400, "Pages of this origin may not call this server: see --allowed-origins.")
        answer = text_response(b"", "text/plain")
        answer.headers["Access-Control-Allow-Methods"] = METHODS
        answer.headers["Access-Control-Max-Age"] = MAX_AGE_S
        if fields := request.headers.get("Access-Control-Request-Headers"):
            answer.headers["Access-Control-Allow-Headers"] = fields
        return answer

    async def _mark(self, response: Response) -> Response:
        if (origin := request.headers.get("Origin")) is None:
            return response
        if ANY in self.origins:
            response.headers["Access-Control-Allow-Origin"] = ANY
        else:
            response.headers.add("Vary", "Origin")
            if not self._allows(origin):
                return response
            response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Expose-Headers"] = EXPOSED
        return response
