"""A conversation with a model on a server: what was said, and the next answer as it comes."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

from runtime.load.answer import CUT, parsed, said_by
from runtime.load.http import Connection, Connections, RequestFailed
from runtime.load.server import PATHS


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

    async def say(self, connections: Connections, text: str) -> AsyncGenerator[AnswerPart, None]:
        """The answer to `text`, part by part. Raises Failed; what did not begin to be answered was not said.

        An answer that its reader leaves is kept as far as it was read, and never with its
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
            async with connections.lend() as connection:
                data = json.dumps(body).encode()
                await connection.send("POST", PATHS["chat"], connections.typed, data)
                async with aclosing(_parts(connection)) as parts:
                    async for part in parts:
                        answer += "" if part.is_thought else part.text
                        yield part
        finally:
            if answer:
                self.turns += [asked, {"role": "assistant", "content": answer}]


async def _parts(connection: Connection) -> AsyncGenerator[AnswerPart, None]:
    """The text of an answer, reasoning included, as it comes."""
    head = await connection.head()
    if head.status != 200:
        body = b""
        while chunk := await connection.data():
            body += chunk
        raise RequestFailed(f"HTTP {head.status}", said_by(body))
    rest, is_done = b"", False
    while data := await connection.data():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            event = line[5:].strip() if line.startswith(b"data:") else b""
            is_done = is_done or event == b"[DONE]"
            if event and not is_done:
                for part in _parts_of(parsed(event)):
                    yield part
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
