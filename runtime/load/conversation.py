"""A conversation with a model on a server: what was said, and the next answer as it comes."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

import httpx

from sundog.runtime.load.answer import CUT, MOST_ERROR_BYTES, parsed, said_by
from sundog.runtime.load.server import PATHS
from sundog.runtime.load.server_client import RequestFailed, ServerClient, events, whole


class AnswerPart(NamedTuple):
    """Some text of an answer, or of the reasoning before it."""

    text: str
    is_thought: bool = False


class Conversation:
    """Turns so far, and how answers are asked for; `fields` go with every request."""

    def __init__(self, model: str, system: str | None, fields: Mapping[str, Any]) -> None:
        self._model, self._fields = model, fields
        self._system = [] if system is None else [{"role": "system", "content": system}]
        self.turns: list[dict[str, str]] = []

    async def say(self, client: ServerClient, text: str) -> AsyncGenerator[AnswerPart, None]:
        """The answer to `text`, part by part. Raises RequestFailed.

        What did not begin to be answered was not said. An answer that its reader leaves is kept as far as it
        was read, and never with its
        reasoning: models are given none of earlier turns.
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
