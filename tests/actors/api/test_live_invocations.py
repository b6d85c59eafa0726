"""POST /invocations answers as the route whose body it is given."""

from typing import Any

import httpx
import pytest

from tests.live import Live

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}


def invoke(server: Live, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/invocations", json=body)


def test_a_conversation_and_a_text_are_told_apart(emulated_server: Live) -> None:
    """Whole and streamed."""
    assert invoke(emulated_server, **CHAT).json()["object"] == "chat.completion"
    assert invoke(emulated_server, prompt="x", max_tokens=3).json()["object"] == "text_completion"
    assert invoke(emulated_server, **CHAT, stream=True).text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b'{"input": "x"}', 404, "Embeddings"),
        (b'{"text": "x"}', 400, "messages, prompt, input"),
        (b"[1]", 400, "messages, prompt, input"),
        (b'{"messages": ', 400, "not valid JSON"),
        (b'{"prompt": ' + b"[" * 300 + b"]" * 300 + b"}", 400, "nested too deeply, at line 1 column"),
        (b'{"prompt": 7}', 400, "prompt"),
    ],
)
def test_errors_are_those_of_the_route(emulated_server: Live, body: bytes, status: int, says: str) -> None:
    """A body of none names the fields that tell them apart."""
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(f"{emulated_server.url}/invocations", content=body, headers=headers)
    assert answer.status_code == status and says in answer.text


def test_a_body_that_is_not_json_is_refused(emulated_server: Live) -> None:
    """As everywhere: a web page may not make a browser send one."""
    answer = httpx.post(f"{emulated_server.url}/invocations", content=b'{"prompt": "x"}')
    assert answer.status_code == 415
