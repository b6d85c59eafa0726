"""The OpenAPI document matches the server."""

import re
from typing import Any

import httpx
import jsonschema
import pytest

from sundog.actors.api import ServedModel, create_app
from sundog.actors.api.bodies.sampling import SAMPLED, SHARED
from sundog.actors.api.openapi import OPERATIONS, document
from tests.live import Live


def routes() -> set[tuple[str, str]]:
    """Method and path of every route of the app, as the document writes them."""
    app = create_app(None, ServedModel("tiny", max_model_len=8, created=0))  # type: ignore[arg-type]
    return {
        (method.lower(), re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule))
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }


def test_every_route_is_in_the_document_and_no_other() -> None:
    """By method and path."""
    assert {(each.method, each.path) for each in OPERATIONS} == routes()
    written = document("1", has_key=False)
    found = {(method, path) for path, methods in written["paths"].items() for method in methods}  # type: ignore[attr-defined]
    assert found == routes()


def test_every_reference_leads_somewhere() -> None:
    """And a key is asked for only where there is one."""
    for has_key in (False, True):
        written = document("1", has_key=has_key)
        components: Any = written["components"]
        for name in re.findall(r"#/components/schemas/(\w+)", str(written)):
            assert name in components["schemas"]
        assert ("securitySchemes" in components) == has_key == ("security" in str(written))


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("body", "is_valid"),
    [
        ({"prompt": "Once"}, True),
        ({"prompt": ["Once", "Twice"], "max_tokens": None, "stop": ["."], "stream_options": None}, True),
        ({"prompt": [1, 2], "temperature": 0, "seed": 7, "model": ""}, True),
        ({"prompt": "Once", "max_tokens": 2.0, "n": 1.0, "seed": 1e3, "logprobs": 1.0}, True),
        ({"prompt": "Once", "max_tokens": 2.5}, False),
        ({"prompt": 7}, False),
        ({"prompt": ""}, False),
        ({}, False),
        ({"prompt": "Once", "top_p": 0}, False),
        ({"prompt": "Once", "max_tokens": 2**31}, False),
        ({"prompt": "Once", "stream": "yes"}, False),
    ],
)
def test_the_document_and_the_server_agree(
    emulated_server: Live, body: dict[str, Any], is_valid: bool
) -> None:
    """On what a body may hold."""
    written = httpx.get(f"{emulated_server.url}/openapi.json").json()
    schema = {"$ref": "#/components/schemas/CompletionBody", "components": written["components"]}
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid(body) == is_valid, list(validator.iter_errors(body))
    answer = httpx.post(f"{emulated_server.url}/v1/completions", json={"max_tokens": 1} | body)
    assert (answer.status_code == 200) == is_valid, answer.text
    if not is_valid:
        error = {"$ref": "#/components/schemas/Error", "components": written["components"]}
        jsonschema.Draft202012Validator(error).validate(answer.json())


def test_the_page_needs_no_network(emulated_server: Live) -> None:
    """It fetches the document from its own server, and nothing from any other."""
    page = httpx.get(f"{emulated_server.url}/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "openapi.json" in page.text and "//" not in re.sub(r"/\*.*?\*/", "", page.text).replace("</", "")


@pytest.mark.parametrize("name", ["ResponseBody", "MessagesBody", "PromptBody"])
def test_what_is_passed_on_to_a_chat_is_in_the_document(name: str) -> None:
    """As a chat completion has it, by the same name."""
    schemas: Any = document("1", has_key=False)["components"]["schemas"]  # type: ignore[index]
    of_chats = schemas["ChatBody"]["properties"]
    passed = {"ResponseBody": SAMPLED, "MessagesBody": SHARED, "PromptBody": SHARED}[name]
    for field in passed:
        assert schemas[name]["properties"][field] == of_chats[field]


RESULT = {"type": "tool_result", "tool_use_id": "1"}


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("path", "name", "body", "is_valid"),
    [
        ("/tokenize", "TokenizeBody", {"prompt": "Once", "messages": None}, True),
        ("/tokenize", "TokenizeBody", {"messages": [{"role": "user", "content": "Once"}]}, True),
        ("/tokenize", "TokenizeBody", {"prompt": "Once", "messages": [{"role": "user"}]}, False),
        ("/tokenize", "TokenizeBody", {"prompt": None}, False),
        ("/tokenize", "TokenizeBody", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, None),
        (
            "/tokenize",
            "TokenizeBody",
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            False,
        ),
        ("blocks", "PromptBody", [{"type": "text", "text": "Once"}], True),
        ("blocks", "PromptBody", [RESULT | {"content": [{"type": "text", "text": "1"}]}], True),
        ("blocks", "PromptBody", [{"type": "text", "text": None}], False),
        ("blocks", "PromptBody", [{"type": "image"}], False),
        ("blocks", "PromptBody", [{"type": "tool_use", "id": "1"}], False),
        ("blocks", "PromptBody", [RESULT | {"content": [RESULT]}], False),
        ("blocks", "PromptBody", [{"type": "tool_result"}], False),
    ],
)
def test_the_document_says_which_fields_go_together(
    emulated_server: Live, path: str, name: str, body: Any, is_valid: bool | None
) -> None:
    """A prompt or messages, and what a block of each type must have; None: only the server is stricter."""
    if path == "blocks":
        path, body = "/v1/messages/count_tokens", {"messages": [{"role": "user", "content": body}]}
    written = httpx.get(f"{emulated_server.url}/openapi.json").json()
    schema = {"$ref": f"#/components/schemas/{name}", "components": written["components"]}
    assert jsonschema.Draft202012Validator(schema).is_valid(body) == (is_valid is not False)
    answer = httpx.post(f"{emulated_server.url}{path}", json=body)
    assert (answer.status_code == 200) == (is_valid is True), answer.text
