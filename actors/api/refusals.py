"""A line of the log for each request that is refused, beside those of requests that ended in an engine."""

import logging

from quart import Quart, Response, request

log = logging.getLogger("sundog.requests")


def log_refusals(app: Quart) -> None:
    """Say who was turned away with which status; the reason may quote a prompt, and is the client's alone."""

    async def note(response: Response) -> Response:
        if request.method == "POST" and response.status_code >= 400:
            name = response.headers.get("X-Request-Id") or request.headers.get("X-Request-Id")
            fields: dict[str, object] = {
                "request_id": name,
                "path": request.path,
                "status": response.status_code,
                "finish_reason": "refused",
            }
            shown = _printable(name or "-"), _printable(request.path), response.status_code
            log.info("%s: POST %s: refused with %d", *shown, extra={"fields": fields})
        return response

    app.after_request(note)


def _printable(text: str) -> str:
    """Without what would steer the terminal that shows the log."""
    return text if text.isprintable() else repr(text)
