"""Detection of a server's abilities: its model, prompts of token ids or text, answers of a given length.

Nothing is assumed of an OpenAI-compatible server that a small request can find out.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any, Literal

import trio

from sundog.actors.config import ConfigError
from sundog.runtime.load.answer import parsed, read_answer, said_by
from sundog.runtime.load.prompts import WORDS, Units
from sundog.runtime.load.rows import Outcome
from sundog.runtime.load.server_client import NO_CONNECTION, RequestFailed, ServerClient

Endpoint = Literal["completions", "chat"]
PATHS: Mapping[Endpoint, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
EXTRAS: tuple[dict[str, Any], ...] = (
    {"ignore_eos": True, "stream_options": {"include_usage": True}},
    {"stream_options": {"include_usage": True}},
    {"ignore_eos": True},
    {},
)
"""Optional request fields, most useful first: each server accepts some of them."""
COMMON_IDS = range(300, 1000)
"""Token ids that every vocabulary has, without a special meaning."""
SHORT, LONG = 8, 200
"""Units of the test prompts."""
NO_KEY = ("HTTP 401", "HTTP 403")


@dataclass(frozen=True, slots=True)
class TargetServer:
    """Detected abilities of a server."""

    client: ServerClient
    model: str
    endpoint: Endpoint
    extras: Mapping[str, Any]
    units: Units
    remarks: tuple[str, ...] = ()
    """Remarks on the load for people, one line each."""

    @property
    def path(self) -> str:
        return PATHS[self.endpoint]

    def body(self, prompt: str | list[int], num_output_tokens: int) -> bytes:
        """Return the body of one request, for a greedy answer of this length."""
        asked = {"prompt": prompt} if self.endpoint == "completions" else _turn(prompt)
        common = {"model": self.model, "max_tokens": num_output_tokens, "temperature": 0, "stream": True}
        return json.dumps({**common, **asked, **self.extras}, separators=(",", ":")).encode()


def _turn(prompt: str | list[int]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": prompt}]}


async def find_server(
    client: ServerClient, model: str | None, endpoint: Endpoint | None, timeout_s: float
) -> TargetServer:
    """Detect what the server is and accepts; raises ConfigError, in one line, if nothing works."""
    with _refusing(client, timeout_s):
        return await _found(client, model or await _model(client), endpoint)


async def find_model(client: ServerClient, timeout_s: float) -> str:
    """Return the name of the server's first model; raises ConfigError, in one line, if there is none."""
    with _refusing(client, timeout_s):
        return await _model(client)


@contextmanager
def _refusing(client: ServerClient, timeout_s: float) -> Iterator[None]:
    url = client.authority
    try:
        with trio.fail_after(timeout_s):
            yield
    except trio.TooSlowError:
        raise ConfigError(f"{url} does not answer within {timeout_s:g} s: is it loading a model?") from None
    except RequestFailed as error:
        raise ConfigError(f"{url}: {error}{_way_out(error)}") from None


def _way_out(error: RequestFailed) -> str:
    if error.kind in NO_KEY:
        return ": put its key into SUNDOG_API_KEY or OPENAI_API_KEY"
    if error.kind == NO_CONNECTION:
        return ": is a server there?"
    if error.kind.startswith("HTTP 5"):
        return ": its log may say why"
    knows_models = error.kind == "HTTP 404" and "model" in error.reason
    return "" if knows_models else ": is it a server that speaks OpenAI's API?"


async def _model(client: ServerClient) -> str:
    answer = await client.ask("GET", "/v1/models")
    if (kind := f"HTTP {answer.status_code}") in NO_KEY:
        raise RequestFailed(kind, said_by(answer.content))
    if answer.status_code != 200:
        raise RequestFailed(f"{kind} for /v1/models", "give --model")
    models = parsed(answer.content).get("data")
    if not isinstance(models, list) or not models or not isinstance(models[0], dict):
        raise RequestFailed("its /v1/models names no model", "give --model")
    return str(models[0].get("id"))


async def _found(client: ServerClient, model: str, endpoint: Endpoint | None) -> TargetServer:
    ids = await _tokens(client, model, " ".join(WORDS))
    said = ""
    for asked, extras, units in _ways(endpoint, ids):
        server = TargetServer(client, model, endpoint=asked, extras=extras, units=units)
        try:
            found = await _probed(server, SHORT)
        except RequestFailed as error:
            if not error.kind.startswith("HTTP 4") or error.kind in NO_KEY:
                raise
            said = said or str(error)
            continue
        return await _measured(server, found)
    raise RequestFailed("it takes no request", said)


def _ways(endpoint: Endpoint | None, ids: list[int]) -> Iterator[tuple[Endpoint, Mapping[str, Any], Units]]:
    for extras in EXTRAS:
        if endpoint != "chat":
            yield "completions", extras, Units(ids=ids or COMMON_IDS)
            yield "completions", extras, Units(words=WORDS)
        if endpoint != "completions":
            yield "chat", extras, Units(words=WORDS)


async def _probed(server: TargetServer, num_units: int) -> Outcome:
    units = server.units
    prompt = list(units.ids[:num_units]) if units.ids else " ".join(islice(cycle(units.words), num_units))
    outcome = Outcome(0.0)
    async with server.client.stream(server.path, server.body(prompt, 2)) as response:
        await read_answer(response, outcome, 0.0)
    if outcome.end == "refused":
        raise RequestFailed("HTTP 429", outcome.reason)
    return outcome


async def _measured(server: TargetServer, short: Outcome) -> TargetServer:
    remarks = []
    if "ignore_eos" not in server.extras:
        remarks.append("the server takes no ignore_eos: answers may end sooner than the trace says")
    if short.num_prompt_tokens is None:
        remarks.append("the server counts no tokens: those of prompts are the trace's, of answers chunks")
        return replace(server, remarks=tuple(remarks))
    each = 1.0
    if server.units.words:
        long = await _probed(server, LONG)
        each = ((long.num_prompt_tokens or 0) - short.num_prompt_tokens) / (LONG - SHORT)
        if each <= 0:
            raise RequestFailed("it counts no more tokens for a longer prompt", f"{short.num_prompt_tokens}")
    fixed = round(short.num_prompt_tokens - SHORT * each)
    if server.units.words:
        remarks.append(f"prompts are text of {each:.2f} tokens a word, {fixed} more in each")
    units = replace(server.units, tokens_each=each, fixed_tokens=fixed)
    return replace(server, units=units, remarks=tuple(remarks))


async def _tokens(client: ServerClient, model: str, text: str) -> list[int]:
    body = {"model": model, "prompt": text, "add_special_tokens": False}
    answer = await client.ask("POST", "/tokenize", json.dumps(body).encode())
    try:
        ids = parsed(answer.content).get("tokens") if answer.status_code == 200 else None
    except RequestFailed:
        return []
    is_list = isinstance(ids, list) and all(type(each) is int for each in ids)
    return sorted(set(ids)) if ids and is_list else []
