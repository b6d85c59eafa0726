"""Fields for prompt processing and for the shown parts of an answer, on live servers."""

import json
from typing import Any

import httpx
import pytest

from tests.live import Live

FOX = "Once upon a time there was a fox"
CHAT: Any = [{"role": "user", "content": "Tell me a story about a fox."}]


def post(server: Live, path: str, **body: Any) -> httpx.Response:
    headers = body.pop("headers", {})
    return httpx.post(f"{server.url}/v1/{path}", json=body, headers=headers)


def complete(server: Live, prompt: Any = FOX, **fields: Any) -> Any:
    body = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, **fields}
    answer = post(server, "completions", prompt=prompt, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def chat(server: Live, messages: Any = CHAT, **fields: Any) -> Any:
    body = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, **fields}
    answer = post(server, "chat/completions", messages=messages, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(server: Live, path: str, **body: Any) -> Any:
    prompt = {"prompt": FOX} if path == "completions" else {"messages": CHAT}
    answer = post(server, path, **{**prompt, "max_tokens": 4, **body})
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def chunks(server: Live, path: str, **body: Any) -> list[Any]:
    fields = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "stream": True, **body}
    with httpx.stream("POST", f"{server.url}/v1/{path}", json=fields) as response:
        assert response.status_code == 200
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_an_echo_is_the_prompt_and_then_the_answer(any_server: Live) -> None:
    """Of text as it was written, of token ids as they read; alone, it shows nothing of the answer."""
    ids = complete(any_server, return_token_ids=True)["choices"][0]["prompt_token_ids"]
    answer = complete(any_server, request_id="one")["choices"][0]["text"]
    for prompt, text in ((FOX, FOX), (ids, f"<|bos|>{FOX}")):
        whole = complete(any_server, prompt, echo=True, request_id="one")["choices"][0]["text"]
        assert whole == text + answer if any_server.is_real else whole.startswith(text)
        alone = complete(any_server, prompt, echo=True, max_tokens=0)
        assert alone["choices"][0]["text"] == text
        assert alone["usage"]["completion_tokens"] == 1
    pieces = chunks(any_server, "completions", prompt=[FOX, "The"], echo=True, n=2, temperature=1)
    for index, prompt in enumerate([FOX, FOX, "The", "The"]):
        texts = [c["text"] for piece in pieces for c in piece["choices"] if c["index"] == index]
        assert "".join(texts).startswith(prompt) and len("".join(texts)) > len(prompt)


def test_an_echo_in_chat_repeats_the_message_that_is_continued(torch_server: Live) -> None:
    """Only if it is of the role that answers."""
    messages = [*CHAT, {"role": "assistant", "content": "Once upon a time"}]
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    plain = chat(torch_server, messages, **fields)["choices"][0]["message"]
    echoed = chat(torch_server, messages, **fields, echo=True)["choices"][0]["message"]
    assert echoed["content"] == "Once upon a time" + plain["content"]
    pieces = chunks(torch_server, "chat/completions", messages=messages, **fields, echo=True)
    deltas = [choice["delta"] for piece in pieces for choice in piece["choices"]]
    assert "".join(delta["content"] for delta in deltas) == echoed["content"]
    assert chat(torch_server, echo=True)["choices"] == chat(torch_server)["choices"]


def test_a_continued_message_is_left_open(torch_server: Live) -> None:
    """Its prompt is that of the conversation, cut off at the end of the last message."""
    messages = [*CHAT, {"role": "assistant", "content": "Once upon"}]
    fields = {"continue_final_message": True, "add_generation_prompt": False, "return_token_ids": True}
    opened = chat(torch_server, messages, **fields)["prompt_token_ids"]
    closed = chat(torch_server, messages, add_generation_prompt=False, return_token_ids=True)
    assert closed["prompt_token_ids"][: len(opened)] == opened and len(opened) < len(
        closed["prompt_token_ids"]
    )
    error = refused(torch_server, "chat/completions", continue_final_message=True, add_generation_prompt=True)
    assert "continue_final_message" in error["message"]
    empty = [*CHAT, {"role": "assistant", "content": ""}]
    del fields["return_token_ids"]
    assert "empty" in refused(torch_server, "chat/completions", messages=empty, **fields)["message"]


def test_a_turn_may_have_no_content(torch_server: Live) -> None:
    """Null and absent are the empty text; content may come in parts, too."""
    null = [{"role": "assistant", "content": None}, *CHAT]
    empty = [{"role": "assistant", "content": ""}, *CHAT]
    ids = {"return_token_ids": True}
    assert (
        chat(torch_server, null, **ids)["prompt_token_ids"]
        == chat(torch_server, empty, **ids)["prompt_token_ids"]
    )
    parts = [{"role": "user", "content": [{"type": "text", "text": CHAT[0]["content"]}]}]
    assert (
        chat(torch_server, parts, **ids)["prompt_token_ids"] == chat(torch_server, **ids)["prompt_token_ids"]
    )
    nothing, no_parts = [{"role": "user"}], [{"role": "user", "content": []}]
    assert (
        chat(torch_server, nothing, **ids)["prompt_token_ids"]
        == chat(torch_server, no_parts, **ids)["prompt_token_ids"]
    )


def test_a_prompt_is_cut_to_as_many_tokens_as_were_asked_for(any_server: Live) -> None:
    """From the left, or the right, behind the first token, which the tokenizer adds; -1 keeps what fits."""
    ids = complete(any_server, return_token_ids=True)["choices"][0]["prompt_token_ids"]

    def kept(**fields: Any) -> list[int]:
        tokens: list[int] = complete(any_server, return_token_ids=True, **fields)["choices"][0][
            "prompt_token_ids"
        ]
        return tokens

    assert kept(truncate_prompt_tokens=3) == [ids[0], *ids[-2:]]
    assert kept(truncate_prompt_tokens=3, add_special_tokens=False) == ids[-3:]
    assert kept(truncate_prompt_tokens=3, truncation_side="right") == ids[:3]
    assert kept(truncate_prompt_tokens=1) == ids[:1]
    assert kept(truncate_prompt_tokens=-1) == ids
    assert kept(prompt=[1, 2, 3, 4], truncate_prompt_tokens=2) == [3, 4]


def test_a_prompt_beyond_the_context_fits_when_it_is_cut(torch_server: Live) -> None:
    """-1 leaves room for the answer that was asked for; another limit must itself fit."""
    context = httpx.get(f"{torch_server.url}/v1/models").json()["data"][0]["max_model_len"]
    long = [5] * (context + 50)
    answer = complete(torch_server, long, truncate_prompt_tokens=-1, max_tokens=10)
    assert answer["usage"]["prompt_tokens"] == context - 10
    for size in (0, context + 1, -2):
        error = refused(torch_server, "completions", prompt=long, truncate_prompt_tokens=size)
        assert error["param"] == "truncate_prompt_tokens"


def test_token_ids_come_when_asked_for(any_server: Live) -> None:
    """Those of the prompt once, those of the answer with its text; chat has them where vLLM has them."""
    whole = complete(any_server, return_token_ids=True)["choices"][0]
    assert len(whole["token_ids"]) == 8 and whole["prompt_token_ids"]
    pieces = chunks(any_server, "completions", prompt=FOX, return_token_ids=True)
    entries = [choice for piece in pieces for choice in piece["choices"]]
    assert entries[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert all(entry["prompt_token_ids"] is None for entry in entries[1:])
    assert sum(len(entry["token_ids"]) for entry in entries) == 8
    talk = chat(any_server, return_token_ids=True)
    assert len(talk["choices"][0]["token_ids"]) == 8 and talk["prompt_token_ids"]
    first, *rest = chunks(any_server, "chat/completions", messages=CHAT, return_token_ids=True)
    assert first["prompt_token_ids"] == talk["prompt_token_ids"]
    assert not any(piece.get("prompt_token_ids") for piece in rest)
    assert complete(any_server)["choices"][0]["token_ids"] is None


def test_what_stopped_an_answer_is_shown_when_asked_for(torch_server: Live) -> None:
    """A stop string whole or in a stream, and the text of a stop token."""
    text = complete(torch_server, max_tokens=24)["choices"][0]["text"]
    stop = text[20:25]
    before = text[: text.index(stop)]
    assert complete(torch_server, max_tokens=24, stop=stop)["choices"][0]["text"] == before
    shown = complete(torch_server, max_tokens=24, stop=stop, include_stop_str_in_output=True)["choices"][0]
    assert (shown["text"], shown["stop_reason"]) == (before + stop, stop)
    fields = {"prompt": FOX, "max_tokens": 24, "stop": stop, "include_stop_str_in_output": True}
    pieces = chunks(torch_server, "completions", **fields)
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == before + stop
    third = complete(torch_server, return_token_ids=True)["choices"][0]["token_ids"][2]
    ended = complete(torch_server, stop_token_ids=[third])["choices"][0]
    included = complete(torch_server, stop_token_ids=[third], include_stop_str_in_output=True)["choices"][0]
    assert included["stop_reason"] == ended["stop_reason"] == third
    assert included["text"].startswith(ended["text"]) and len(included["text"]) > len(ended["text"])


def test_special_tokens_are_shown_when_asked_for(torch_server: Live) -> None:
    """The end token has a text then."""
    fields = {"messages": CHAT, "max_tokens": 200, "temperature": 0, "return_token_ids": True}
    hidden = post(torch_server, "chat/completions", **fields).json()["choices"][0]
    assert hidden["finish_reason"] == "stop"
    shown = post(
        torch_server, "chat/completions", **fields, skip_special_tokens=False, include_stop_str_in_output=True
    ).json()["choices"][0]
    assert shown["token_ids"] == hidden["token_ids"]
    assert shown["message"]["content"].startswith(hidden["message"]["content"])
    assert shown["message"]["content"] != hidden["message"]["content"]


def test_a_template_gets_the_clients_arguments_and_no_others(torch_server: Live) -> None:
    """Variables that the request's own fields say are refused."""
    assert chat(torch_server, chat_template_kwargs={"enable_thinking": False})["choices"]
    for name in ("messages", "add_generation_prompt", "tools", "chat_template"):
        error = refused(torch_server, "chat/completions", chat_template_kwargs={name: 1})
        assert error["param"] == "chat_template_kwargs"
    assert chat(torch_server, chat_template_kwargs={"raise_exception": 1, "range": 2})["choices"]


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_a_clients_own_request_id_is_kept(any_server: Live) -> None:
    """From the body or the header, which counts more; two at a time may share one."""
    assert complete(any_server, request_id="mine")["id"] == "cmpl-mine"
    assert chat(any_server, headers={"X-Request-Id": "yours"}, request_id="mine")["id"] == "chatcmpl-yours"
    with httpx.Client() as client:
        body = {"prompt": FOX, "max_tokens": 100, "ignore_eos": True, "stream": True, "request_id": "mine"}
        with client.stream("POST", f"{any_server.url}/v1/completions", json=body):
            assert complete(any_server, request_id="mine")["id"] == "cmpl-mine"
    error = refused(any_server, "completions", headers={"X-Request-Id": "x" * 1025})
    assert error["param"] == "X-Request-Id"
    assert (
        refused(any_server, "completions", headers={"X-Vllm-Priority": "high"})["param"] == "X-Vllm-Priority"
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt_embeds", "AAAA"),
        ("logprob_token_ids", [1]),
        ("watermarking", True),
        ("use_beam_search", True),
        ("suffix", "end"),
        ("kv_transfer_params", {"do_remote_prefill": True}),
        ("top_logprobs", 3),
    ],
)
def test_what_is_not_honoured_is_refused_by_name(torch_server: Live, field: str, value: object) -> None:
    """It would change the answer."""
    assert refused(torch_server, "completions", **{field: value})["param"] == field


def test_what_changes_nothing_is_ignored(torch_server: Live) -> None:
    """As vLLM ignores it, and what it does not know."""
    harmless = {
        "session_id": "s",
        "stream_interval": 4,
        "user": "me",
        "shoe_size": 43,
        "mm_payload": "tensors",
    }
    assert (
        complete(torch_server, **harmless)["choices"][0]["text"]
        == complete(torch_server)["choices"][0]["text"]
    )


HEAD = {"id", "object", "created", "model", "choices", "usage", "service_tier", "system_fingerprint"}
BESIDE = {"kv_transfer_params", "ec_transfer_params", "metrics"}
CHOICE = {"index", "logprobs", "finish_reason", "stop_reason", "token_ids", "routed_experts"}


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_answers_have_the_keys_of_vllm(any_server: Live) -> None:
    """Of vLLM 0.32, null where there is nothing to say."""
    whole = complete(any_server)
    assert whole.keys() == HEAD | BESIDE
    assert whole["choices"][0].keys() == CHOICE | {"text", "prompt_logprobs", "prompt_token_ids"}
    talk = chat(any_server)
    assert talk.keys() == HEAD | BESIDE | {"prompt_logprobs", "prompt_token_ids", "prompt_text"}
    assert talk["choices"][0].keys() == CHOICE | {"message"}
    message = {"role", "content", "refusal", "annotations", "audio", "function_call", "reasoning"}
    assert talk["choices"][0]["message"].keys() == message
    assert whole["usage"].keys() >= {"prompt_tokens", "completion_tokens", "total_tokens"}
    piece = chunks(any_server, "completions", prompt=FOX)[1]["choices"][0]
    assert piece.keys() == CHOICE - {"routed_experts"} | {"text", "prompt_token_ids"}
    piece = chunks(any_server, "chat/completions", messages=CHAT)[1]["choices"][0]
    assert piece.keys() == CHOICE - {"routed_experts", "stop_reason"} | {"delta"}


def test_an_answer_ends_when_it_repeats_itself(torch_server: Live) -> None:
    """After `min_count` patterns, but not before `min_tokens`; a stream ends so, too."""
    same = {"logit_bias": {"70": 100}, "max_tokens": 30}
    detection = {"max_pattern_size": 3, "min_pattern_size": 2, "min_count": 3}
    for more, num_tokens in (({}, 6), ({"min_tokens": 9}, 9), ({"stop": ["zzz"]}, 6)):
        answer = complete(torch_server, repetition_detection=detection, **same, **more)
        choice = answer["choices"][0]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("repetition", "repetition_detected")
        assert answer["usage"]["completion_tokens"] == num_tokens
    assert complete(torch_server, **same)["usage"]["completion_tokens"] == 30
    for wrong in ({"max_pattern_size": 2}, {"min_pattern_size": 1}, {"max_pattern_size": -1}, {"size": 1}):
        error = refused(torch_server, "completions", repetition_detection=wrong)
        assert error["param"].startswith("repetition_detection")


def test_log_probabilities_of_named_tokens(any_server: Live) -> None:
    """Instead of the likeliest ones, beside the token's own; only with `logprobs`."""
    answer = complete(any_server, logprobs=1, logprob_token_ids=[70, 71], return_tokens_as_token_ids=True)
    for token, top in zip(
        *(answer["choices"][0]["logprobs"][name] for name in ("tokens", "top_logprobs")), strict=True
    ):
        assert list(top) == list(dict.fromkeys([token, "token_id:70", "token_id:71"]))
    listed = chat(any_server, logprobs=True, logprob_token_ids=[70])["choices"][0]["logprobs"]["content"]
    assert all(len(each["top_logprobs"]) <= 2 for each in listed)
    for wrong in ({}, {"logprobs": 1, "logprob_token_ids": [10**6]}):
        fields = {"logprob_token_ids": [70], **wrong}
        assert refused(any_server, "completions", **fields)["param"] == "logprob_token_ids"


def test_a_conversation_is_shown_as_the_model_reads_it(torch_server: Live) -> None:
    """`return_prompt_text`, whole and streamed; roles are the template's affair."""
    text = "<|bos|><|critic|>No.<|end|><|assistant|>"
    messages = [{"role": "critic", "content": "No."}]
    assert chat(torch_server, messages, return_prompt_text=True)["prompt_text"] == text
    body = {"messages": messages, "max_tokens": 1, "stream": True, "return_prompt_text": True}
    first = post(torch_server, "chat/completions", **body).text.splitlines()[0]
    assert json.loads(first.removeprefix("data: "))["prompt_text"] == text
