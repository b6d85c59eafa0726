"""GET /health, and responses while no engine is up."""

import json

import pytest

from sundog.actors.messages import Generate, Health, Refused
from tests.actors.api.conftest import Exchange, Serving

pytestmark = pytest.mark.wall_clock

BODY = b'{"model": "tiny/story", "prompt": "hello"}'
POST = (
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    ("health", "status"),
    [
        (Health("healthy", ("healthy",)), 200),
        (Health("degraded", ("healthy", "restarting"), "replica 1: a bug"), 200),
        (Health("restarting", ("restarting",), "replica 0: a bug", 2.5), 503),
        (Health("dead", ("dead",), "replica 0: a bug"), 503),
    ],
    ids=lambda value: value.status if isinstance(value, Health) else "",
)
async def test_health_is_200_while_requests_are_taken(
    serving: Serving, exchange: Exchange, health: Health, status: int
) -> None:
    """And says why, when not all is well."""
    async with serving() as site, await site.connect() as stream:
        site.llm.health = health
        got, headers, body = await exchange(stream, GET)
    assert got == status
    assert headers.get("retry-after") == ("3" if health.status == "restarting" else None)
    if health.status != "healthy":
        assert json.loads(body) == {
            "status": health.status,
            "replicas": list(health.replicas),
            "reason": health.reason,
        }


@pytest.mark.parametrize(
    ("refused", "status", "retry_after"),
    [
        (Refused("restarting", kind="unavailable", retry_after_s=2.5), 503, "3"),
        (Refused("dead", kind="unavailable"), 503, None),
        (Refused("unreadable", kind="failed"), 500, None),
    ],
    ids=["restarting", "dead", "failed"],
)
async def test_a_refusal_has_its_status(
    serving: Serving, exchange: Exchange, refused: Refused, status: int, retry_after: str | None
) -> None:
    """In OpenAI's shape, with a time to come back if there is one."""

    def refuse(generate: Generate) -> Refused:
        return refused

    async with serving() as site, await site.connect() as stream:
        site.llm.refuse = refuse
        got, headers, answer = await exchange(stream, POST % len(BODY), BODY)
    assert (got, headers.get("retry-after")) == (status, retry_after)
    assert json.loads(answer)["error"]["message"] == refused.reason
