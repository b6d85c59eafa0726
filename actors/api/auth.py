"""`--api-key`: every request must carry the key, except for the few paths that are open by name.

Operators' routes are the other exception: they ask for the admin key themselves.
"""

from actors.api.errors import ApiError
from actors.api.keys import Keys
from actors.http.quart_app import ApiRequest

LIVE = "/dashboard/events"
OPEN = frozenset(("/health", "/ready", "/readyz", "/ping", "/version", "/metrics"))
"""Paths that probes and scrapers read without a key."""
PAGES = frozenset(("/", "/dashboard", "/docs", "/openapi.json"))
"""Pages that hold nothing of what clients ask; the live page asks its reader for the key."""
OPERATORS = "admin"
"""The blueprint whose routes need the admin key instead."""


def needs_key(path: str) -> bool:
    """True unless the path is open: a new route needs the key until it is listed as open."""
    return (path.rstrip("/") or "/") not in OPEN | PAGES


def check_key(request: ApiRequest, keys: Keys) -> None:
    """Note who asks; raises 401 unless a request that needs a key carries one."""
    if not needs_key(request.path) or request.blueprint == OPERATORS:
        return
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if request.path.startswith("/v1/messages") and (own := request.headers.get("X-Api-Key")) is not None:
        scheme, given = "bearer", own  # as Anthropic's clients send it
    request.client = keys.find(given) if scheme.lower() == "bearer" else None
    if request.client is not None:
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
