"""`--api-key`: every call of /v1 must carry the key, and so must scores and the live page; not so health."""

from actors.api.bodies.scoring import RERANKS, SCORES
from actors.api.edge.request import ApiRequest
from actors.api.errors import ApiError
from actors.api.keys import Keys

LIVE = "/dashboard/events"


def needs_key(path: str) -> bool:
    """Whether this path is only for clients with the key: answers, and what is told of them."""
    return path in ("/v1", LIVE, *SCORES, *RERANKS) or path.startswith("/v1/")


def check_key(request: ApiRequest, keys: Keys) -> None:
    """Note who asks; raises 401 unless a request that needs a key carries one."""
    if not needs_key(request.path):
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
