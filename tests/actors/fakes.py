"""Small actors and backends for tests of the graph."""

import codecs
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from sundog.actors.config import EngineConfig, SchedulerConfig
from sundog.actors.core.batch import Batch, StepResult
from sundog.actors.core.request import Submit
from sundog.actors.front.codec import TooManyTokens
from sundog.actors.kernel.actor import Actor, Reply
from sundog.actors.kernel.clock import Event, now_s
from sundog.actors.kernel.stream import Delta
from sundog.actors.messages import PLAIN_READING, Accepted, Capacity, ChatMessage, Reading, StepOutput
from tests.timers import call_at

EOS = 0
STEP_S = 1 / 64
TOKEN_S = 1 / 1024
FILLER = ord(".")
SCHEDULER_FIELDS = {field.name for field in fields(SchedulerConfig)}


def step_s(batch: Batch) -> float:
    """How long the fake takes for a step."""
    return STEP_S + TOKEN_S * batch.num_tokens


class FakeBackend:
    """Folds batches as `core/batch.py` says and samples what it was told to, after a wait.

    `outputs` holds each request's tokens, which end with EOS if the request is to end by it; when
    they run out, or for a request it does not name, comes FILLER. With `counts` it tells no
    tokens, only who ended, and does runs of steps if asked.
    """

    def __init__(
        self,
        outputs: Mapping[str, Sequence[int]] | None = None,
        *,
        num_blocks: int = 257,
        block_size: int = 4,
        counts: bool = False,
        key: str = "",
    ) -> None:
        self.outputs = outputs or {}
        self.capacity = Capacity(num_blocks, block_size)
        self.counts = counts
        self.key = key
        self.num_outputs: dict[str, int] = {}
        self.decoding: dict[str, None] = {}
        self.num_sampled = 0
        self.queue: deque[tuple[Batch, Reply]] = deque()
        self.sampling: list[str] = []
        self.failing: list[str] = []
        self.end_times_s: list[float] = []
        self.tokens: list[tuple[str, int]] = []
        self.is_interrupted = False
        self.life: list[str] = []
        self.fail_at: Mapping[str, int] = {}
        """How many tokens each of these requests gets before its row fails."""

    async def load(self) -> Capacity:
        self.life.append("load")
        return self.capacity

    async def close(self) -> None:
        self.life.append("close")

    def interrupt(self) -> None:
        self.is_interrupted = True

    def execute(self, batch: Batch) -> Reply:
        reply = Reply()
        self.queue.append((batch, reply))
        if len(self.queue) == 1:
            self._begin(batch)
        return reply

    def _begin(self, batch: Batch) -> None:
        self.is_interrupted = False
        self.sampling, self.end_times_s = self._fold(batch), []
        self._step(batch)

    def _step(self, batch: Batch) -> None:
        self.failing = [name for name in self.sampling if self.num_outputs[name] == self.fail_at.get(name)]
        going_on = [name for name in self.sampling if name not in self.failing]
        self.tokens = [(name, self._sample(name)) for name in going_on]
        self.end_times_s.append(now_s() + (step_s(batch) if batch.num_tokens else 0.0))
        call_at(self.end_times_s[-1], Event.STEP_END, self.key, self._end_step)

    def _end_step(self) -> None:
        batch, reply = self.queue[0]
        self.num_sampled += len(self.tokens)
        ended = tuple(name for name, token in self.tokens if token == EOS)
        is_over = ended or self.failing or self.is_interrupted or len(self.end_times_s) == batch.max_steps
        if not is_over:
            return self._step(batch)
        failed = tuple((name, f"{name} has no token {self.fail_at[name]}") for name in self.failing)
        tokens = None if self.counts else tuple(self.tokens)
        result = StepResult(batch.step, self.end_times_s, tokens, ended if self.counts else (), failed)
        self.queue.popleft()
        if self.queue:
            self._begin(self.queue[0][0])
        reply.set(result)

    def _fold(self, batch: Batch) -> list[str]:
        """Whoever samples in this step."""
        for name in (*batch.finished, *batch.preempted):
            self.decoding.pop(name, None)
            self.num_outputs.pop(name, None)
        for admission in batch.admitted:
            known = admission.num_tokens - admission.num_prompt_tokens
            self.num_outputs[admission.request_id] = known
        sampling = [name for name in self.decoding if name not in batch.idle]
        assert len(sampling) == batch.num_decodes
        for chunk in batch.chunks:
            if chunk.samples:
                sampling.append(chunk.request_id)
                self.decoding[chunk.request_id] = None
        return sampling

    def _sample(self, name: str) -> int:
        outputs, position = self.outputs.get(name, ()), self.num_outputs[name]
        self.num_outputs[name] += 1
        return outputs[position] if position < len(outputs) else FILLER


class Listener(Actor):
    """Keeps what the graph tells its listeners."""

    def __init__(self, name: str = "listener") -> None:
        super().__init__(name)
        self.submits: list[Submit] = []
        self.outputs: list[StepOutput] = []

    def handle(self, message: Any) -> Any:
        match message:
            case Submit():
                self.submits.append(message)
            case StepOutput():
                self.outputs.append(message)


class BytesDecoder:
    """One request's bytes to text: nothing is shown in the middle of a character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def step(self, token_id: int) -> str:
        return self._decoder.decode(bytes([token_id]))


class Bytes:
    """A tokenizer whose tokens are the bytes of UTF-8."""

    def encode(self, text: str, most_tokens: int | None = None, add_special_tokens: bool = True) -> list[int]:
        tokens = list(text.encode())
        if most_tokens is not None and len(tokens) > most_tokens:
            raise TooManyTokens(len(tokens))
        return tokens

    def encode_plain(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        most_tokens: int | None = None,
        reading: Reading = PLAIN_READING,
    ) -> list[int]:
        if any(message.role != "user" for message in messages):
            raise ValueError("this model only knows users")
        return self.encode("".join(message.content for message in messages), most_tokens)

    def decoder(
        self,
        prompt_ids: Sequence[int],
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> BytesDecoder:
        return BytesDecoder()

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return bytes(token_ids).decode(errors="replace")

    def token_name(self, token_id: int) -> str | None:
        return chr(token_id) if token_id < 256 else None

    def info(self) -> dict[str, object]:
        return {"tokenizer_class": "Bytes"}

    def token_text(self, token_id: int) -> str:
        return self.decode([token_id])


def engine_config(**fields: Any) -> EngineConfig:
    """A small engine; `fields` go where they belong."""
    limits: dict[str, Any] = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
        "max_model_len": 128,
        "block_size": 4,
    }
    rest: dict[str, Any] = {}
    for name, value in fields.items():
        (limits if name in SCHEDULER_FIELDS else rest)[name] = value
    return EngineConfig(scheduler=SchedulerConfig(**limits), **rest)


async def read(accepted: object) -> Delta:
    """All of a request's deltas as one; fails unless it was accepted."""
    assert isinstance(accepted, Accepted), accepted
    whole = Delta()
    async for delta in accepted.stream:
        whole = whole.merged(delta)
    return whole
