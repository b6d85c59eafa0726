"""A conversation sends all its turns with each question, and keeps only answered ones."""

import pytest

from sundog.runtime.load.conversation import Conversation
from sundog.runtime.load.server_client import RequestFailed, ServerClient
from tests.runtime.load.servers import Asked, scripted


async def _words(asked: Asked) -> None:
    question = asked.body["messages"][-1]["content"]
    if question == "fail":
        await asked.answer(500, {"error": {"message": "a bug"}})
        return
    await asked.begin()
    for text in ("", f"{len(asked.body['messages'])} ", question[::-1]):
        await asked.event({"choices": [{"delta": {"role": "assistant", "content": text}}]})
    if question == "half":
        raise ConnectionAbortedError
    await asked.event("[DONE]")
    await asked.write(b"0\r\n\r\n")


async def answer(conversation: Conversation, client: ServerClient, question: str) -> str:
    return "".join([part.text async for part in conversation.say(client, question)])


async def test_every_question_brings_all_that_was_said() -> None:
    """The system's words first; forgetting is an empty list of turns."""
    conversation = Conversation("m", "be brief", {"max_tokens": 9})
    async with scripted(_words) as server:
        assert await answer(conversation, server.client, "abc") == "2 cba"
        assert await answer(conversation, server.client, "de") == "4 ed"
        conversation.turns.clear()
        assert await answer(conversation, server.client, "f") == "2 f"


async def test_what_fails_was_not_said_and_what_breaks_off_is_kept_as_it_is() -> None:
    """So that the next question makes sense to the model."""
    conversation = Conversation("m", None, {})
    async with scripted(_words) as server:
        with pytest.raises(RequestFailed, match="HTTP 500: a bug"):
            await answer(conversation, server.client, "fail")
        assert conversation.turns == []
        with pytest.raises(RequestFailed):
            await answer(conversation, server.client, "half")
    assert [turn["content"] for turn in conversation.turns] == ["half", "1 flah"]


async def test_reasoning_is_told_apart_and_not_sent_back() -> None:
    """Under either of its names."""

    async def thinks(asked: Asked) -> None:
        await asked.begin()
        for field, text in (("reasoning_content", "Two "), ("reasoning", "and two."), ("content", "Four")):
            await asked.event({"choices": [{"delta": {field: text}}]})
        await asked.event("[DONE]")
        await asked.write(b"0\r\n\r\n")

    conversation = Conversation("m", None, {})
    async with scripted(thinks) as server:
        parts = [part async for part in conversation.say(server.client, "2+2?")]
    assert [part.is_thought for part in parts] == [True, True, False]
    assert [turn["content"] for turn in conversation.turns] == ["2+2?", "Four"]
