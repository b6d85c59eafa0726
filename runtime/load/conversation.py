"""Conversation with a model on a server: the turns so far, and the next answer as a stream."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

import httpx

from sundog.runtime.load.answer import CUT, MOST_ERROR_BYTES, parsed, said_by
from sundog.runtime.load.server import PATHS
from sundog.runtime.load.server_client import RequestFailed, ServerClient, events, whole


class AnswerPart(NamedTuple):
    """Text of an answer, or of the reasoning before it."""

    text: str
    is_thought: bool = False


class Conversation:
    """Turns so far, and the request's settings; `fields` are sent with every request."""

    def __init__(self, model: str, system: str | None, fields: Mapping[str, Any]) -> None:
        self._model, self._fields = model, fields
        self._system = [] if system is None else [{"role": "system", "content": system}]
        self.turns: list[dict[str, str]] = []

    async def say(self, client: ServerClient, text: str) -> AsyncGenerator[AnswerPart, None]:
        """Send `text` and yield the answer part by part. Raises RequestFailed.

        If no answer begins, the turn is not kept. An abandoned answer is kept as far as it was read, and
        always without its reasoning: models are not given that of earlier turns.
        """
        asked = {"role": "user", "content": text}
        body = {
            "model": self._model,
            "messages": [*self._system, *self.turns, asked],
            "stream": True,
            **self._fields,
        }
        answer = ""
        try:
            async with (
                client.stream(PATHS["chat"], json.dumps(body).encode()) as response,
                aclosing(_parts(response)) as parts,
            ):
                async for part in parts:
                    answer += "" if part.is_thought else part.text
                    yield part
        finally:
            if answer:
                self.turns += [asked, {"role": "assistant", "content": answer}]


async def _parts(response: httpx.Response) -> AsyncGenerator[AnswerPart, None]:
    if response.status_code != 200:
        said = said_by(await whole(response, MOST_ERROR_BYTES))
        raise RequestFailed(f"HTTP {response.status_code}", said)
    is_done = False
    async with aclosing(events(response)) as parts:
        async for part in parts:
            for event in part:
                is_done = is_done or event == b"[DONE]"
                if event and not is_done:
                    for text in _parts_of(parsed(event)):
                        yield text
    if not is_done:
        raise RequestFailed(CUT, "it ended before its answer did")


def _parts_of(body: dict[str, Any]) -> list[AnswerPart]:
    if body.get("error"):
        raise RequestFailed("error", said_by(json.dumps(body).encode()))
    deltas = [choice.get("delta") or {} for choice in body.get("choices") or ()]
    names = ("reasoning_content", "reasoning", "content")
    return [
        AnswerPart(text, name != "content")
        for delta in deltas
        for name in names
        if isinstance(text := delta.get(name), str) and text
    ]
