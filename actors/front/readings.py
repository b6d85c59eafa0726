"""Prompts that PromptReaders are reading: two lanes, so that long ones do not wait for longer ones."""

from actors.kernel.actor import Ref, Reply
from actors.kernel.clock import now_s
from actors.kernel.stream import Delta, DeltaStream
from actors.messages import Accepted, Generate, PromptRead, ReadPrompt, Refused

SHORT = 4_000
"""A prompt of at most this many characters is read in place: 0.6 ms, where a thread costs 0.15."""
LONG = 100_000
"""One of more characters than this goes to the second reader."""


class Readings:
    """The prompts that are being read, by request id."""

    __slots__ = ("_answers", "_number", "_readers")

    def __init__(self, readers: tuple[Ref[ReadPrompt], Ref[ReadPrompt]]) -> None:
        self._readers = readers
        self._answers: dict[str, tuple[int, int, Reply[Accepted | Refused]]] = {}
        """The number of each prompt, that of its choices, and where its answer goes."""
        self._number = 0

    def __len__(self) -> int:
        """How many requests of the engine's the prompts will be."""
        return sum(n for _, n, _ in self._answers.values())

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._answers

    def begin(
        self, generate: Generate, request_id: str, num_characters: int
    ) -> tuple[Reply[PromptRead], str, Reply[Accepted | Refused]]:
        """Have a prompt read: the PromptRead to come, its PromptReader, the answer that waits for it."""
        self._number += 1
        answer: Reply[Accepted | Refused] = Reply()
        self._answers[request_id] = self._number, generate.n, answer
        reader = self._readers[num_characters > LONG]
        read = reader.request(ReadPrompt(generate, request_id, self._number, now_s()))
        return read, reader.receiver, answer

    def end(self, read: PromptRead) -> Reply[Accepted | Refused] | None:
        """The answer that waits for this prompt, unless it has been cancelled."""
        number, _, answer = self._answers.get(read.request_id, (0, 0, None))
        if number != read.number:
            return None
        del self._answers[read.request_id]
        return answer

    def cancel(self, request_id: str) -> None:
        """Answer the client that waits for this prompt at once, with an aborted request."""
        _, n, answer = self._answers.pop(request_id, (0, 0, None))
        if answer is not None:
            streams = tuple([DeltaStream() for _ in range(n)])
            for stream in streams:
                stream.put(Delta(finish_reason="abort"))
            answer.set(Accepted(request_id, 0, streams))

    def close(self) -> None:
        """Hang up on the PromptReaders."""
        for reader in self._readers:
            reader.close()
