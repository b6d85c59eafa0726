"""Server-sent events: deltas as OpenAI's chunks.

A chunk is a fixed prefix, the text as JSON, and a fixed suffix, since this runs once per token. Law: a stream
ends with `data: [DONE]`; if generating failed, an error event precedes it.
"""

import json
import logging
from collections.abc import Callable, Sequence
from json.encoder import encode_basestring_ascii
from typing import Protocol

from sundog.actors.api.answers.choices import AnswerChoice, AnswerChoices, ChoiceView, usage_object
from sundog.actors.api.answers.shapes import Json, ResponseShape
from sundog.actors.api.errors import BROKEN, ApiError, ErrorShape
from sundog.actors.front.foreign import OWN_EXITS
from sundog.actors.kernel.stream import Delta

log = logging.getLogger("sundog.api")

DONE = b"data: [DONE]\n\n"
SLOT = "\ue000"  # where the text goes in a chunk that is made once


class EventWriter(Protocol):
    """Writer of a stream's deltas, its end, and an error, which ends it."""

    def delta(self, choice: AnswerChoice, delta: Delta) -> bytes: ...

    def last(self) -> bytes: ...

    def error(self, message: str) -> bytes: ...


class ChunkWriter:
    """Writer of an answer's chunks; `head` holds their common fields, and the last one has `fingerprint`."""

    def __init__(
        self,
        shape: ResponseShape,
        head: Json,
        choices: AnswerChoices,
        views: list[ChoiceView],
        spell: ErrorShape,
        fingerprint: str | None = None,
    ) -> None:
        self._fingerprint = fingerprint
        self._shape = shape
        self._head = head
        self._spell = spell
        self._choices = choices
        self._views = views
        self._wanted = views[0].wanted
        self._has_begun = False
        self._around_text = (
            [self._split(view) for view in views] if self._wanted.is_plain and shape.is_plain else []
        )

    def _chunk(self, body: Json, usage: Json | None = None) -> str:
        chunk = self._head | body
        if self._wanted.usage == "always" or usage is not None:
            chunk["usage"] = usage
        return f"data: {json.dumps(chunk, separators=(',', ':'))}\n\n"

    def _split(self, view: ChoiceView) -> tuple[str, str]:
        chunk = self._chunk({"choices": [self._shape.chunk(view, Delta(SLOT), is_first=False)]})
        before, _, after = chunk.rpartition(json.dumps(SLOT))
        return before, after

    def delta(self, choice: AnswerChoice, delta: Delta) -> bytes:
        """Return a delta as a chunk, preceded by the opening chunks if it is the first."""
        opening = "" if self._has_begun else self._opening()
        view = self._views[choice.index]
        is_first, view.has_begun = not view.has_begun, True
        is_plain = not is_first and delta.finish_reason is None and self._wanted.usage != "always"
        if is_plain and self._around_text:
            before, after = self._around_text[choice.index]
            return f"{before}{encode_basestring_ascii(delta.text)}{after}".encode()
        usage = self._shape.chunk_usage(choice.usage()) if self._wanted.usage == "always" else None
        body: Json = {"choices": [self._shape.chunk(view, delta, is_first)]}
        if delta.finish_reason is not None and self._wanted.usage == "never":
            body["system_fingerprint"] = self._fingerprint
        return (opening + self._chunk(body, usage)).encode()

    def _opening(self) -> str:
        self._has_begun = True
        first = self._choices.all[0]
        begun = usage_object(
            first.asked.num_prompt_tokens, 0, num_thoughts=None if first.thoughts is None else 0
        )
        usage = self._shape.chunk_usage(begun) if self._wanted.usage == "always" else None
        return "".join([self._chunk(body, usage) for body in self._shape.openings(self._views)])

    def error(self, message: str) -> bytes:
        """Return an event that OpenAI's clients raise as APIError, and the end mark."""
        return f"data: {json.dumps(self._spell(ApiError(500, message)))}\n\n".encode() + DONE

    def last(self) -> bytes:
        """Return the usage chunk, if requested, and the end mark."""
        if self._wanted.usage == "never":
            return DONE
        body: Json = {"choices": [], "system_fingerprint": self._fingerprint}
        usage = {name: value for name, value in self._choices.usage().items() if value is not None}
        return self._chunk(body, usage).encode() + DONE


class Events:
    """Body of a streamed answer: all new output in one piece, the end with the last delta.

    Once the body has begun, a failure can only be an event in it.
    """

    def __init__(self, choices: AnswerChoices, writer: EventWriter, interval: int = 1) -> None:
        self._choices, self._writer, self._interval = choices, writer, interval
        self._unfinished: Sequence[AnswerChoice] = choices.all
        self.is_over = False

    def watch(self, on_unread: Callable[[], None]) -> None:
        """Call `on_unread` whenever output becomes available; at once if some is."""
        self._choices.watch(on_unread, self._interval)

    def take(self) -> bytes:
        """Return the events of all new output; empty if there is none."""
        written: list[bytes] = []
        try:
            self._take(written)
        except OWN_EXITS:
            raise
        except BaseException:  # in the way of `contained`
            log.exception("a stream failed")
            written.append(self._writer.error(BROKEN))
            self.is_over = True
        return written[0] if len(written) == 1 else b"".join(written)

    def _take(self, written: list[bytes]) -> None:
        has_finished = False
        for choice in self._unfinished:
            if (delta := choice.take()) is not None:
                if delta.finish_reason == "error":
                    written.append(self._writer.error(delta.error or BROKEN))
                    self.is_over = True
                    return
                written.append(self._writer.delta(choice, delta))
                has_finished = has_finished or choice.finished
        if has_finished:
            self._unfinished = [choice for choice in self._unfinished if not choice.finished]
            if not self._unfinished:
                written.append(self._writer.last())
                self.is_over = True
