"""Answers restricted by a schema, a regular expression or a grammar, on a live server."""

import json
import math
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import httpx
import jsonschema
import openai
import pytest
from pydantic import BaseModel

from tests.live import EMULATED, Live, live

pytest.importorskip("torch", reason="the engine extra is not installed")
pytest.importorskip("llguidance", reason="the extra for structured output is not installed")

SERVE = ("sundog", "serve", "--port", "0", "--dtype", "float32", "--debug")
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "pets": {"type": "array", "items": {"enum": ["cat", "dog"]}, "maxItems": 2},
        "home": {"anyOf": [{"$ref": "#/$defs/place"}, {"type": "null"}]},
    },
    "required": ["name", "age", "pets", "home"],
    "additionalProperties": False,
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"x": {"type": "number", "minimum": 0, "maximum": 9}},
            "required": ["x"],
            "additionalProperties": False,
        }
    },
}
TIGHT = {"json": PERSON, "disable_any_whitespace": True}
CHOICES = ["yes", "no", "maybe so", 'é"\\\n']


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(*SERVE) as running:
        yield running


def answer(server: Live, outputs: object = None, **fields: Any) -> dict[str, Any]:
    """The only choice, with its usage."""
    extra = {} if outputs is None else {"structured_outputs": outputs}
    response = server.complete(**{"max_tokens": 400, "temperature": 1, **extra, **fields})
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    return {**choice, **response.json()["usage"]}


def refusal(server: Live, **fields: Any) -> dict[str, Any]:
    response = server.complete(max_tokens=5, **fields)
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


class Visit(BaseModel):
    """What a client may ask for first."""

    town: Literal["Rome", "Oslo"]
    rainy: bool
    people: Literal[1, 2, 3]


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_the_first_thing_that_a_client_parses_comes_to_an_end(server: Live) -> None:
    """Between two tokens of JSON stands a blank or a line break with its indentation, and no run of them."""
    asked: Any = {"model": "", "messages": [{"role": "user", "content": "Tell me of a town."}]}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        for seed in range(4):
            answer = client.chat.completions.parse(
                **asked, response_format=Visit, max_tokens=400, seed=seed
            ).choices[0]
            assert answer.finish_reason == "stop" and answer.message.parsed is not None
            assert not re.search(
                r"[\x20\t]\s|\n\s*\n", re.sub(r"\n[\x20\t]*", "\n", answer.message.content or "")
            )


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_a_schema_is_kept_at_every_seed_and_others_in_the_batch_notice_nothing(server: Live) -> None:
    """At temperature 1, beside greedy and drawn answers that are what they are alone."""
    plain = [{"temperature": 0}, {"seed": 7}, {"seed": 8, "top_p": 0.8}]
    alone = [answer(server, max_tokens=120, **each)["text"] for each in plain]
    with ThreadPoolExecutor(16) as pool:
        kept = [pool.submit(answer, server, TIGHT, seed=seed) for seed in range(8)]
        others = [pool.submit(answer, server, max_tokens=120, **each) for each in plain]
        for each in kept:
            assert each.result()["finish_reason"] == "stop"
            jsonschema.validate(json.loads(each.result()["text"]), PERSON)
        assert [other.result()["text"] for other in others] == alone
    assert len({each.result()["text"] for each in kept}) > 4
    server.assert_sound()


def test_a_seed_repeats_whatever_is_in_the_batch(server: Live) -> None:
    alone = answer(server, TIGHT, seed=3)["text"]
    with ThreadPoolExecutor(6) as pool:
        texts = list(pool.map(lambda seed: answer(server, TIGHT, seed=seed)["text"], [1, 2, 3, 4]))
    assert texts[2] == alone


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("outputs", "pattern"),
    [
        ({"regex": r"[A-Z][a-z]{3,9}, (19|20)\d\d"}, r"[A-Z][a-z]{3,9}, (19|20)\d\d"),
        ({"regex": "^(a|bc)+d$"}, "(a|bc)+d"),
        ({"choice": CHOICES}, "|".join(map(re.escape, CHOICES))),
        ({"grammar": 'root ::= "a" b{1,4} "c"\nb ::= [0-9] | "x"\n'}, "a[0-9x]{1,4}c"),
        ({"grammar": 'start: WORD ("," WORD)~1..3\nWORD: /[a-z]{2,5}/\n'}, "[a-z]{2,5}(,[a-z]{2,5}){1,3}"),
    ],
)
def test_expressions_choices_and_grammars_are_matched_whole(
    server: Live, outputs: dict[str, Any], pattern: str
) -> None:
    """Greedily and at several seeds."""
    for fields in ({"temperature": 0}, {"seed": 1}, {"seed": 2}, {"seed": 3}):
        got = answer(server, outputs, **fields)
        assert got["finish_reason"] == "stop" and re.fullmatch(pattern, got["text"]), got


def test_a_grammar_may_have_thousands_of_alternatives(server: Live) -> None:
    """They all go on after their first letter, and an answer does not end in an error there."""
    grammar = "root ::= " + " | ".join(f'"w{number}"' for number in range(3_000))
    assert re.fullmatch(r"w[12]?\d{1,3}", answer(server, {"grammar": grammar}, temperature=0)["text"])


def test_classes_of_characters_are_those_of_ascii(server: Live) -> None:
    """As in vLLM: no other script's digits, whatever is drawn."""
    pattern = r"\w{3} \d{3}[\d-]{2}\D"
    for seed in range(8):
        text = answer(server, {"regex": pattern}, seed=seed, temperature=2)["text"]
        assert re.fullmatch(pattern, text, re.ASCII), text


def test_a_grammar_in_lark_may_inline_its_start(server: Live) -> None:
    outputs = {"grammar": '?start: NUMBER ("+" NUMBER)~2\nNUMBER: /[0-9]{2}/\n'}
    assert re.fullmatch(r"\d\d(\+\d\d){2}", answer(server, outputs, temperature=0)["text"])


def test_the_model_chooses_the_tokens_of_a_text_that_is_fixed(server: Live) -> None:
    """As in vLLM: a token that only begins the text may be taken, and none is forced."""
    outputs = {"choice": ["forever and ever"]}
    plain = answer(server, outputs, temperature=0, return_token_ids=True)
    banned = {str(token): -100 for token in plain["token_ids"][:1]}
    other = answer(server, outputs, temperature=0, return_token_ids=True, logit_bias=banned)
    assert plain["text"] == other["text"] == "forever and ever"
    assert plain["token_ids"] != other["token_ids"]


def test_an_answer_that_is_complete_ends_whatever_forbids_its_end(server: Live) -> None:
    """It used to fail with all that it had said."""
    letters = answer(server, {"choice": ["ab"]}, temperature=0, return_token_ids=True)["token_ids"]
    for ban in (
        {"allowed_token_ids": letters[:-1]},
        {"min_tokens": 9},
        {"logit_bias": {str(letters[-1]): -100}},
    ):
        got = answer(server, {"choice": ["ab"]}, temperature=0, max_tokens=9, **ban)
        assert (got["text"], got["finish_reason"]) == ("ab", "stop"), ban
    assert answer(server, {"choice": [""]}, min_tokens=4)["completion_tokens"] == 1


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_any_object_is_json(server: Live) -> None:
    """`response_format` of OpenAI, and `json_object` of vLLM; what is cut says so."""
    for fields in ({"response_format": {"type": "json_object"}}, {"outputs": {"json_object": True}}):
        got = answer(server, seed=2, max_tokens=200, **fields)
        assert got["text"].lstrip().startswith("{")
        assert got["finish_reason"] == "length" or isinstance(json.loads(got["text"]), dict)
    assert answer(server, TIGHT, max_tokens=3)["finish_reason"] == "length"


def test_the_openai_client_parses_into_a_class(server: Live) -> None:
    class Animal(BaseModel):
        legs: int
        tame: bool

    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    parsed = client.chat.completions.parse(
        model="sundog-tiny",
        messages=[{"role": "user", "content": "Tell me of a dog."}],
        response_format=Animal,
        temperature=0,
        max_tokens=200,
    )
    assert isinstance(parsed.choices[0].message.parsed, Animal)


def test_a_stream_says_what_the_whole_answer_says(server: Live) -> None:
    body = {"prompt": "Once", "max_tokens": 300, "seed": 5, "structured_outputs": TIGHT}
    whole = answer(server, TIGHT, prompt="Once", seed=5, max_tokens=300)["text"]
    with httpx.stream("POST", f"{server.url}/v1/completions", json={**body, "stream": True}) as response:
        events = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1]) == whole


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_it_works_beside_every_other_parameter(server: Live) -> None:
    """Bans, biases and penalties choose among what the grammar leaves; a finished answer may end early."""
    assert answer(server, {"choice": CHOICES}, temperature=0, min_tokens=50)["text"] in CHOICES
    letters = {"regex": "[a-f]{40}"}
    for fields in (
        {"repetition_penalty": 1.5},
        {"presence_penalty": 1.5, "frequency_penalty": 1.5},
        {"bad_words": ["a", "b"]},
        {"min_p": 0.2},
        {"top_k": 2},
        {"logit_bias": {"40": 100, "2": 100}},
    ):
        got = answer(server, letters, seed=4, **fields)
        assert re.fullmatch("[a-f]{40}", got["text"]), (fields, got)
    got = answer(server, {"regex": "[a-f]*"}, temperature=0, stop=["c"], logit_bias={"2": -100})
    assert "c" not in got["text"]
    got = answer(server, {"choice": ["yes", "no"]}, temperature=0, ignore_eos=True, max_tokens=9)
    assert (got["text"] in ("yes", "no"), got["finish_reason"], got["completion_tokens"]) == (
        True,
        "length",
        9,
    )
    response = server.complete(n=3, logprobs=2, temperature=1, structured_outputs={"choice": ["yes", "no"]})
    choices = response.json()["choices"]
    assert {choice["text"] for choice in choices} <= {"yes", "no"} and len(choices) == 3


def test_a_grammar_at_odds_with_the_allowed_tokens_fails_its_own_request(server: Live) -> None:
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(answer, server, temperature=0, max_tokens=60)
        response = server.complete(allowed_token_ids=[500], structured_outputs={"regex": "[0-9]{9}"})
        assert response.status_code == 500 and "ruled out" in response.json()["error"]["message"]
        assert other.result()["finish_reason"] == "length"
    server.assert_sound()


def test_structural_tags_bind_what_stands_between_them(server: Live) -> None:
    """Free text until a trigger, then the schema and the end."""
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    old = {
        "triggers": ["<f"],
        "structures": [{"begin": "<f>", "schema": {**schema, "additionalProperties": False}, "end": "</f>"}],
    }
    assert answer(server, {"structural_tag": json.dumps(old)}, temperature=0, max_tokens=40)["text"]
    content = {"type": "json_schema", "json_schema": old["structures"][0]["schema"]}  # type: ignore[index]
    new = {
        "type": "triggered_tags",
        "triggers": ["<f"],
        "tags": [{"begin": "<f>", "content": content, "end": "</f>"}],
    }
    fields = {"response_format": {"type": "structural_tag", "format": new}}
    for seed in range(3):
        got = answer(server, seed=seed, max_tokens=60, logit_bias={"34": 8}, **fields)["text"]
        for inside in re.findall(r"<f(.*?)(?:</f>|$)", got, re.S):
            assert inside.startswith(">") or not inside, got


SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "strin"}}}


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": SCHEMA}, "response_format.json_schema.schema", "strin"),
        ({"response_format": {"type": "xml"}}, "response_format", "json_schema or structural_tag"),
        ({"response_format": {}}, "response_format", "must be an object with the type"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema like"),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one of"),
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs", "unknown field"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "regex and choice"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs", "at least one string"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs", "list of strings"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "cannot be used"),
        ({"structured_outputs": {"json": {"type": "string", "not": {}}}}, "structured_outputs.json", "not"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex", "unclosed"),
        ({"structured_outputs": {"regex": r"[^\s\S]"}}, "structured_outputs.regex", "nothing matches"),
        ({"structured_outputs": {"regex": "a" * 40_000}}, "structured_outputs.regex", "at most 32768"),
        ({"structured_outputs": {"grammar": "root ::= ("}}, "structured_outputs.grammar", "cannot be used"),
        ({"structured_outputs": {"grammar": "start: none"}}, "structured_outputs.grammar", "none"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag", "format"),
        (
            {"response_format": {"type": "structural_tag", "format": {"type": "any_tokens"}}},
            "response_format",
            "any_tokens",
        ),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
            "leave one out",
        ),
        ({"guided_json": {}}, "guided_json", "structured_outputs"),
    ],
)
def test_what_no_answer_can_be_held_to_is_a_bad_request(
    server: Live, fields: dict[str, Any], param: str, words: str
) -> None:
    """400, with the field and the reason."""
    error = refusal(server, **fields)
    assert error["param"].removeprefix("body.") == param and words in error["message"], error


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_what_hangs_or_crashes_the_compiler_is_a_bad_request(server: Live) -> None:
    """Minutes of work in a few hundred characters; more stack than a process has: others go on meanwhile."""
    patterns = [{"pattern": f".*[a-z]{{{size}}}.*"} for size in range(1, 40)]
    slow = {"json": {"type": "string", "allOf": patterns}}
    deep = {"grammar": "root ::= " + "(" * 9000 + '"a"' + ")" * 9000}
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(refusal, server, structured_outputs=each) for each in (slow, deep)]
        assert answer(server, temperature=0, max_tokens=50)["finish_reason"] == "length"
        assert "5 s to compile" in asked[0].result()["message"]
        assert "cannot be used" in asked[1].result()["message"]
    assert answer(server, {"choice": ["again"]})["text"] == "again"
    server.assert_sound()


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_steps_planned_ahead_and_preemptions_change_no_token(server: Live) -> None:
    """Async scheduling or not, room for all or for few: the same greedy answers."""

    def all_answers(at: Live) -> list[str]:
        with ThreadPoolExecutor(8) as pool:
            prompts = [f"Tell me of animal {index} and " * 3 for index in range(8)]
            return list(
                pool.map(
                    lambda text: answer(at, TIGHT, prompt=text, temperature=0, max_tokens=160)["text"],
                    prompts,
                )
            )

    expected = all_answers(server)
    for settings in (("--no-async-scheduling",), ("--num-gpu-blocks", "14", "--max-model-len", "192")):
        with live(*SERVE, *settings) as other:
            assert all_answers(other) == expected
            other.assert_sound()
    for text in expected:
        jsonschema.validate(json.loads(text), PERSON)


def test_a_missing_extra_is_named_to_the_client_who_needs_it() -> None:
    """400 with what installs it; everybody else is served."""
    with live("tests.without", "llguidance", *SERVE[1:]) as bare:
        error = refusal(bare, structured_outputs={"regex": "a"})
        assert "pip install 'sundog[structured]'" in error["message"] and error["param"]
        assert answer(bare, temperature=0, max_tokens=5)["text"]


def test_a_simulated_model_refuses_by_name() -> None:
    """Its words are canned: it could keep to nothing."""
    with live(*EMULATED) as emulated:
        error = refusal(emulated, response_format={"type": "json_object"})
        assert error["param"] == "response_format" and "not supported" in error["message"]


def test_log_probabilities_are_those_of_what_the_grammar_leaves(server: Live) -> None:
    """As vLLM gives them, whose mask comes first; penalties and biases do not show."""
    found = answer(server, {"choice": ["yes", "no"]}, logprobs=3, temperature=0)["logprobs"]
    first = dict(found["top_logprobs"][0])
    assert sum(math.exp(value) for value in first.values()) == pytest.approx(1, abs=1e-4)
    assert min(first.values()) == -9999
    fields = {"logprobs": 3, "temperature": 0, "logit_bias": {"5": -9}, "repetition_penalty": 1.3}
    biased = answer(server, {"choice": ["yes", "no"]}, **fields)["logprobs"]
    assert biased["top_logprobs"][0] == pytest.approx(first, abs=1e-5)
