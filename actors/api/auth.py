"""`--api-key`: every call of /v1 must carry the key; health and version stay open."""

import hmac

from quart import Request

from actors.api.errors import ApiError


def check_key(request: Request, api_key: str) -> None:
    """Raise 401 unless a request under /v1 carries the key; every guess takes the same time."""
    if request.path != "/v1" and not request.path.startswith("/v1/"):
        return
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and hmac.compare_digest(given.encode(), api_key.encode()):
        return
    raise ApiError(
        401,
        "Wrong API key: send the server's key as 'Authorization: Bearer KEY'."
        if given
        else "No API key: send the server's key as 'Authorization: Bearer KEY'.",
        None,
        "invalid_api_key",
        {"WWW-Authenticate": "Bearer"},
    )
