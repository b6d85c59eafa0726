"""Reader of one streamed answer: times of its parts, its end, and the server's counts."""

import json
from array import array
from contextlib import aclosing
from typing import Any

import httpx
import trio

from sundog.runtime.load.rows import Outcome
from sundog.runtime.load.server_client import CONNECTION_LOST, RequestFailed, events, whole

CUT, MALFORMED, SAID = "cut stream", "malformed answer", "error in the stream"
SAYING = ("content", "reasoning_content", "reasoning", "tool_calls")
REFUSED = 429
MOST_REASON = 200
MOST_ERROR_BYTES = 1 << 16


async def read_answer(response: httpx.Response, outcome: Outcome, start_s: float) -> None:
    """Read to the end of the answer. Raises RequestFailed unless it is a whole stream."""
    if response.status_code != 200:
        await _refusal(response, outcome)
        return
    kind = response.headers.get("content-type", "body of no type")
    if not kind.startswith("text/event-stream"):
        raise RequestFailed(MALFORMED, f"a {kind}, and no stream")
    reader = _AnswerReader(outcome)
    try:
        async with aclosing(events(response)) as parts:
            async for part in parts:
                now_s = trio.current_time() - start_s
                for event in part:
                    reader.take(event, now_s)
    except RequestFailed as error:
        is_cut = error.kind == CONNECTION_LOST and outcome.num_chunks and not reader.is_done
        if error.kind != CONNECTION_LOST or not reader.is_done:
            raise (RequestFailed(CUT, error.reason) if is_cut else error) from None
    reader.finish()


class _AnswerReader:
    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._reason: str | None = None
        self._usage: dict[str, Any] | None = None
        self._said_s = array("d")
        """Times of chunks with text."""
        self.is_done = False

    def take(self, event: bytes, now_s: float) -> None:
        """Add one event of the stream; events after the last are ignored."""
        if self.is_done:
            return
        if event == b"[DONE]":
            self.is_done = True
            return
        body = parsed(event)
        if body.get("error"):
            raise RequestFailed(SAID, message_of(body))
        if usage := body.get("usage"):
            self._usage = usage
        for choice in body.get("choices") or ():
            if _has_token(choice):
                self._outcome.chunk(now_s)
                if _says_something(choice):
                    self._said_s.append(now_s)
            self._reason = choice.get("finish_reason") or self._reason

    def finish(self) -> None:
        """Check that the stream ended properly."""
        outcome = self._outcome
        if self._reason is None:
            raise RequestFailed(
                CUT if outcome.num_chunks else CONNECTION_LOST, "it ended before its answer did"
            )
        outcome.num_output_tokens = outcome.num_chunks
        if self._usage is not None:
            _count(outcome, self._usage)
            if self._said_s and outcome.num_chunks > outcome.num_output_tokens:
                outcome.chunks_were(self._said_s)
        outcome.end = "length" if self._reason == "length" else "stop"


def _has_token(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    if delta is None:
        return "text" in choice
    return any(delta.get(name) for name in SAYING) or ("role" not in delta and "content" in delta)


def _says_something(choice: dict[str, Any]) -> bool:
    said = choice.get("delta") or choice
    return any(said.get(name) for name in ("text", *SAYING))


def _count(outcome: Outcome, usage: dict[str, Any]) -> None:
    outcome.num_prompt_tokens = usage.get("prompt_tokens") or outcome.num_prompt_tokens
    outcome.num_output_tokens = usage.get("completion_tokens") or outcome.num_output_tokens
    outcome.num_cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")


async def _refusal(response: httpx.Response, outcome: Outcome) -> None:
    said = said_by(await whole(response, MOST_ERROR_BYTES))
    if response.status_code != REFUSED:
        raise RequestFailed(f"HTTP {response.status_code}", said)
    outcome.end, outcome.trouble, outcome.reason = "refused", f"HTTP {REFUSED}", said
    try:
        outcome.retry_after_s = float(response.headers.get("retry-after", ""))
    except ValueError:  # none, or a date
        outcome.retry_after_s = None


def parsed(text: bytes) -> dict[str, Any]:
    """Parse a JSON object; raises RequestFailed for anything else."""
    try:
        body = json.loads(text)
    except ValueError:
        raise RequestFailed(MALFORMED, f"not JSON: {_short(text)}") from None
    if not isinstance(body, dict):
        raise RequestFailed(MALFORMED, f"not a JSON object: {_short(text)}")
    return body


def said_by(body: bytes) -> str:
    """Return the message in an error's body, in one line."""
    try:
        return message_of(parsed(body))
    except RequestFailed:
        return _short(body)


def message_of(body: dict[str, Any]) -> str:
    """Return the message of an error in the format of OpenAI, vLLM and others."""
    error = body.get("error", body)
    said = error.get("message") or error.get("detail") if isinstance(error, dict) else error
    return _short(str(said or body).encode())


def _short(text: bytes) -> str:
    words = " ".join(text.decode(errors="replace").split())
    return words if len(words) <= MOST_REASON else f"{words[:MOST_REASON]}…"
