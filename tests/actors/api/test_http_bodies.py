"""Validation of request bodies: strict types, and the exceptions that clients need."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from sundog.actors.api.bodies.chat import ChatBody
from sundog.actors.api.bodies.extras import UNSUPPORTED, check_extras
from sundog.actors.api.bodies.parsing import BodyT, JsonObject, check_content_type, parse, validate
from sundog.actors.api.bodies.texts import CompletionBody
from sundog.actors.api.context import ApiContext, ServedModel
from sundog.actors.api.errors import ApiError
from sundog.actors.api.in_flight import AnswersInFlight
from sundog.actors.config.sampling_defaults import SamplingDefaults
from sundog.actors.core.params.sampling import Sampling

HELLO = [{"role": "user", "content": "hello"}]


class Nobody:
    """An AsyncLLM that is never asked."""

    async def ask(self, message: object) -> Any:
        raise AssertionError(message)

    def tell(self, message: object) -> None:
        raise AssertionError(message)


def context() -> ApiContext:
    in_flight = AnswersInFlight(Nobody())
    return ApiContext(Nobody(), ServedModel("m", 10, 0), lambda: "1", in_flight, in_flight)


def parsed(body_type: type[BodyT], data: bytes) -> BodyT:
    return validate(body_type, parse(data))


def refused(body_type: type[JsonObject], **fields: object) -> ApiError:
    with pytest.raises(ApiError) as caught:
        body = parsed(body_type, json.dumps(fields).encode())
        check_extras(body, context())
    assert caught.value.status == 400
    return caught.value


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", 3),
        ("prompt", []),
        ("prompt", [[]]),
        ("prompt", [1, "a"]),
        ("prompt", [1, -1]),
        ("prompt", [True]),
        ("prompt", [1, 2**31]),
        ("prompt", [[1], [2**63]]),
        ("prompt", ["a"] * 1025),
        ("temperature", "0.5"),
        ("temperature", -0.1),
        ("temperature", True),
        ("temperature", 1e7),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", -2),
        ("top_k", 2**31),
        ("top_k", 2**63),
        ("top_k", 2**64),
        ("top_k", 2.5),
        ("seed", "x"),
        ("seed", 2**63),
        ("seed", -(2**63) - 1),
        ("max_tokens", -1),
        ("max_tokens", 2**31),
        ("max_tokens", "16"),
        ("max_tokens", 1.5),
        ("min_tokens", -1),
        ("min_tokens", 2**63),
        ("stop", 3),
        ("stop", [""]),
        ("stop", ["a"] * 65),
        ("stop", ["a"] * 100_000),
        ("stop", "a" * 1025),
        ("stop_token_ids", ["a"]),
        ("stop_token_ids", 5),
        ("stop_token_ids", [2**31]),
        ("stop_token_ids", [1] * 4097),
        ("ignore_eos", 1),
        ("priority", "high"),
        ("priority", 2**63),
        ("cache_salt", ""),
        ("cache_salt", "a" * 1025),
        ("stream", "yes"),
        ("stream_options", 3),
        ("model", 7),
    ],
)
def test_wrong_types_and_values_are_refused_by_field(field: str, value: object) -> None:
    """The error's param and message name the field."""
    error = refused(CompletionBody, **{"prompt": "x", field: value})
    assert error.param is not None and error.param.partition("[")[0] == field
    assert field in error.message


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hello", "messages"),
        (["hello"], "messages[0]"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([*HELLO, {"role": "user", "content": [{"type": "text"}]}], "messages[1].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content"),
    ],
)
def test_wrong_messages_are_refused_by_place(messages: object, param: str) -> None:
    """The error says which message is meant."""
    assert refused(ChatBody, messages=messages).param == param


def test_a_part_that_is_not_text_is_refused_by_its_type() -> None:
    """The message names the type of the part."""
    content = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {}}]
    error = refused(ChatBody, messages=[{"role": "user", "content": content}])
    assert '"image_url"' in error.message and "[1]" in error.message


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "user", "content": "", "tool_calls": [{"function": {"name": "f"}}]},
        {"role": "assistant", "content": "", "tool_call_id": "1"},
    ],
)
def test_turns_that_no_template_would_show_are_refused(turn: dict[str, object]) -> None:
    """Calls are the assistant's, and their results are the tool's."""
    body = parsed(ChatBody, json.dumps({"messages": [turn]}).encode())
    with pytest.raises(ApiError, match=r"role|tool_calls"):
        body.messages[0].checked("messages[0]")


def numbers_and_lists(schema: object) -> Iterator[dict[str, Any]]:
    """Every number and every list of a JSON schema, wherever it stands."""
    if isinstance(schema, list):
        for each in schema:
            yield from numbers_and_lists(each)
    elif isinstance(schema, dict):
        if schema.get("type") in ("integer", "number", "array"):
            yield schema
        for each in schema.values():
            yield from numbers_and_lists(each)


@pytest.mark.parametrize("body_type", [CompletionBody, ChatBody])
def test_every_number_and_every_list_has_its_bounds(body_type: type[JsonObject]) -> None:
    """In the type, so that a field cannot be added without them."""
    found = list(numbers_and_lists(body_type.model_json_schema()))
    assert len(found) >= 9
    for each in found:
        if each["type"] == "array":
            assert "maxItems" in each, each
        else:
            assert {"minimum", "exclusiveMinimum"} & each.keys() and "maximum" in each, each


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\xed\xa0\x80"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "x"} {}',
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "x", "shoe_size": -Infinity}',
        b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}",
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"prompt": "x", "prompt": "y"}',
        b'{"prompt": "x", "' + b"k" * 5000 + b'": 1, "' + b"k" * 5000 + b'": 1}',
    ],
)
def test_what_is_not_a_strict_json_object_is_refused(data: bytes) -> None:
    """The message says JSON, no field is blamed, and it stays short."""
    with pytest.raises(ApiError, match="JSON") as caught:
        parsed(CompletionBody, data)
    assert (caught.value.status, caught.value.param) == (400, None)
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    "field", ["temperature", "seed", "prompt", "stop", "n", "logprobs", "stop_token_ids"]
)
def test_a_message_shows_little_of_a_large_value(field: str) -> None:
    """A megabyte comes back as a few words of it."""
    body = json.dumps({"prompt": "x", field: {"a": ["b" * 1000] * 1000}}).encode()
    with pytest.raises(ApiError, match=field) as caught:
        check_extras(parsed(CompletionBody, body), context())
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    "given", ["application/json", "Application/JSON; charset=utf-8", "application/x+json"]
)
def test_json_by_its_media_type_is_welcome(given: str) -> None:
    """In any case, with parameters, and when it is more than JSON."""
    check_content_type(given, None)
    check_content_type(given, "identity")


@pytest.mark.parametrize(
    ("given", "encoding"),
    [
        (None, None),
        ("", None),
        ("text/plain", None),
        ("application/x-www-form-urlencoded", None),
        ("application/jsonx", None),
        ("application/json", "gzip"),
    ],
)
def test_other_media_types_are_refused(given: str | None, encoding: str | None) -> None:
    """The message says what to send."""
    with pytest.raises(ApiError, match="send") as caught:
        check_content_type(given, encoding)
    assert caught.value.status == 415


def test_a_body_has_no_thousands_of_fields() -> None:
    """Nor has an object in it."""
    many = {f"field{index}": index for index in range(1001)}
    assert "1001 fields" in refused(CompletionBody, **many).message
    error = refused(ChatBody, messages=[{"role": "user", "content": "x", **many}])
    assert "1003 fields" in error.message and error.param == "messages[0]"


def test_null_fields_are_absent() -> None:
    """Null everywhere is the same as nothing."""
    nulls = dict.fromkeys((*CompletionBody.model_fields, *UNSUPPORTED, "unheard_of"))
    body = parsed(CompletionBody, json.dumps({**nulls, "prompt": "x"}).encode())
    assert body == parsed(CompletionBody, b'{"prompt": "x"}')
    assert body.model_extra == {}


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_unsupported_fields_pass_only_with_neutral_values(name: str) -> None:
    """A value that asks for something is refused by name; the ordinary one is accepted."""
    error = refused(CompletionBody, prompt="x", **{name: {"asks": "for something"}})
    assert error.param == name and name in error.message
    for neutral in UNSUPPORTED[name]:
        check_extras(parsed(CompletionBody, json.dumps({"prompt": "x", name: neutral}).encode()), context())


def sampling(**fields: object) -> Sampling:
    return parsed(CompletionBody, json.dumps({"prompt": "x", **fields}).encode()).sampling(16)


def test_zero_logprobs_are_not_no_logprobs() -> None:
    """In completions 0 asks for the chosen token's own, and false for none."""
    assert [sampling(logprobs=each).logprobs for each in (False, None, 0, 5, -1)] == [None, None, 0, 5, -1]


def test_chat_counts_the_likeliest_apart_from_whether_any_are_wanted() -> None:
    """As OpenAI does; a number without the switch is refused, not ignored."""

    def wanted(**fields: object) -> int | None:
        text = json.dumps({"messages": [{"role": "user", "content": "x"}], **fields})
        return parsed(ChatBody, text.encode()).sampling(16).logprobs

    assert wanted() is None and wanted(logprobs=False, top_logprobs=0) is None
    assert (wanted(logprobs=True), wanted(logprobs=True, top_logprobs=3)) == (0, 3)
    with pytest.raises(ApiError) as raised:
        wanted(top_logprobs=3)
    assert raised.value.param == "top_logprobs"


def test_what_bends_logits_reaches_the_engine() -> None:
    """Ids of a bias are strings in JSON; beyond 100 either way it is 100, as in vLLM; words count once."""
    asked = sampling(
        logit_bias={"7": 5, "11": -1000.5},
        bad_words=["a", "b", "a"],
        allowed_token_ids=[3, 4],
        min_p=0.1,
        repetition_penalty=1.5,
        presence_penalty=-2,
        frequency_penalty=0.25,
        seed=-1,
    )
    assert asked == Sampling(
        max_tokens=16,
        logit_bias=((7, 5.0), (11, -100.0)),
        bad_words=("a", "b"),
        allowed_token_ids=(3, 4),
        min_p=0.1,
        repetition_penalty=1.5,
        presence_penalty=-2.0,
        frequency_penalty=0.25,
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logit_bias", []),
        ("logit_bias", {"seven": 1}),
        ("logit_bias", {"7.0": 1}),
        ("logit_bias", {"7": "1"}),
        ("logit_bias", {"7": True}),
        ("logit_bias", {"7": None}),
        ("logit_bias", {"7": 1, "07": 1}),
        ("logit_bias", {str(10**20): 1}),
        ("bad_words", "word"),
        ("bad_words", [""]),
        ("bad_words", [3]),
        ("bad_words", ["x"] * 1025),
        ("bad_words", ["x" * 1025]),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [-1]),
        ("allowed_token_ids", ["3"]),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0),
        ("repetition_penalty", -1),
        ("repetition_penalty", 1e30),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("frequency_penalty", "1"),
        ("logprobs", -2),
        ("logprobs", True),
        ("logprobs", 1.5),
        ("prompt_logprobs", -2),
        ("prompt_logprobs", True),
    ],
)
def test_what_bends_logits_is_refused_by_name(name: str, value: object) -> None:
    param = refused(CompletionBody, prompt="x", **{name: value}).param
    assert param is not None and param.partition("[")[0] == name


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("name", ["min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"])
def test_what_is_not_a_number_is_refused(name: str, number: str) -> None:
    with pytest.raises(ApiError):
        parsed(CompletionBody, f'{{"prompt": "x", "{name}": {number}}}'.encode())
    with pytest.raises(ApiError):
        parsed(CompletionBody, f'{{"prompt": "x", "logit_bias": {{"3": {number}}}}}'.encode())


def test_what_a_body_leaves_out_is_as_the_model_s_defaults_have_it() -> None:
    """And what it says, even if it says what is usual, is as it says."""
    defaults = SamplingDefaults(0.6, 20, 0.95, 0.1, 1.1)

    def asked(**fields: object) -> Sampling:
        return parsed(CompletionBody, json.dumps({"prompt": "x", **fields}).encode()).sampling(16, defaults)

    own = Sampling(0.6, 20, 0.95, min_p=0.1, repetition_penalty=1.1, max_tokens=16)
    assert asked() == asked(temperature=None, top_k=None) == own
    usual = {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "repetition_penalty": 1}
    assert asked(**usual) == Sampling(max_tokens=16)


def test_a_stream_has_no_prompt_logprobs() -> None:
    """As in vLLM."""
    with pytest.raises(ApiError) as raised:
        sampling(prompt_logprobs=1, stream=True)
    assert raised.value.param == "prompt_logprobs"


def test_an_unknown_field_is_remarked_on_once(caplog: pytest.LogCaptureFixture) -> None:
    """One log line for each name, however often it comes; harmless fields get none."""
    caplog.set_level(logging.INFO, "sundog.api")
    with_log = context()
    for _ in range(3):
        check_extras(parsed(CompletionBody, b'{"prompt": "x", "shoe_size": 43, "user": "me"}'), with_log)
    assert [record.name for record in caplog.records] == ["sundog.api"]
    assert "shoe_size" in caplog.text


def test_top_k_has_two_ways_to_be_off() -> None:
    """-1 and 0 both mean no limit, as in vLLM."""
    for value in (-1, 0):
        body = parsed(CompletionBody, json.dumps({"prompt": "x", "top_k": value}).encode())
        assert body.sampling(16).top_k is None


def test_limits_must_fit_together() -> None:
    """min_tokens above max_tokens is refused."""
    body = parsed(CompletionBody, b'{"prompt": "x", "min_tokens": 17}')
    with pytest.raises(ApiError, match="min_tokens"):
        body.sampling(16)


def test_the_newer_limit_wins() -> None:
    """max_completion_tokens replaces max_tokens in chat."""
    data = {"messages": HELLO, "max_tokens": 5, "max_completion_tokens": 7}
    assert parsed(ChatBody, json.dumps(data).encode()).token_limit == 7
    del data["max_completion_tokens"]
    assert parsed(ChatBody, json.dumps(data).encode()).token_limit == 5
