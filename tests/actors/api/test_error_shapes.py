"""Format of error responses: vLLM's by default, OpenAI's as an option."""

from typing import Any

import httpx
import pytest

from sundog.actors.api.errors import ApiError, as_openai, as_vllm, invalid
from tests.live import EMULATED, Live, live


@pytest.mark.parametrize(
    ("error", "vllm", "openai"),
    [
        (invalid("no", "n"), ("BadRequestError", 400), ("invalid_request_error", None)),
        (
            ApiError(404, "no", "model", "model_not_found"),
            ("NotFoundError", 404),
            ("invalid_request_error", "model_not_found"),
        ),
        (
            ApiError(429, "no", None, "rate_limit_exceeded"),
            ("Too Many Requests", 429),
            ("rate_limit_error", "rate_limit_exceeded"),
        ),
        (ApiError(500, "no"), ("InternalServerError", 500), ("server_error", None)),
        (ApiError(503, "no"), ("ServiceUnavailableError", 503), ("server_error", None)),
    ],
)
def test_type_and_code_are_those_of_the_model(
    error: ApiError, vllm: tuple[str, int], openai: tuple[str, str | None]
) -> None:
    """Message and param are the same."""
    for spell, expected in ((as_vllm, vllm), (as_openai, openai)):
        body: Any = spell(error)["error"]
        assert (body["type"], body["code"]) == expected
        assert (body["message"], body["param"]) == (error.message, error.param)


def errors(server: Live) -> list[tuple[object, object]]:
    """Type and code of a wrong field, and of a model that is not served."""
    answers = [
        httpx.post(f"{server.url}/v1/completions", json={"prompt": "x", "n": 0}),
        httpx.post(f"{server.url}/v1/completions", json={"prompt": "x", "model": "other"}),
    ]
    found = [answer.json()["error"] for answer in answers]
    return [(error["type"], error["code"]) for error in found]


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_a_server_spells_errors_as_vllm_does(emulated_server: Live) -> None:
    """Without being asked."""
    assert errors(emulated_server) == [("BadRequestError", 400), ("NotFoundError", 404)]
    unknown = httpx.get(f"{emulated_server.url}/v1/nothing")
    assert (unknown.status_code, unknown.json()) == (404, {"detail": "Not Found"})
    wrong = httpx.get(f"{emulated_server.url}/v1/completions")
    assert (wrong.status_code, wrong.json()) == (405, {"detail": "Method Not Allowed"})
    assert "POST" in wrong.headers["Allow"]


def test_a_server_spells_errors_as_openai_does_when_asked() -> None:
    """`--compat openai`."""
    with live(*EMULATED, "--compat", "openai") as server:
        kind = "invalid_request_error"
        assert errors(server) == [(kind, None), (kind, "model_not_found")]
        unknown = httpx.get(f"{server.url}/v1/nothing").json()["error"]
        assert (unknown["type"], unknown["code"]) == (kind, "unknown_url")
        assert "/v1/nothing" in unknown["message"]
