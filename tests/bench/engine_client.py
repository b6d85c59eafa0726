"""HTTP/1.1 clients of the engine's benchmark that use little CPU themselves.

Server and clients share this machine's cores, so nothing is parsed but where an event begins; the last
event's usage says how many tokens came.
"""

import asyncio
import itertools
import json
import random
import re
import statistics
import time
from dataclasses import dataclass, field

MOST_WAIT_S = 600


@dataclass(slots=True)
class Answer:
    """The times of one request's tokens."""

    begin_s: float
    first_s: float
    last_s: float
    num_tokens: int


@dataclass(slots=True)
class Load:
    """What some clients saw."""

    answers: list[Answer] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        begin_s, end_s = min(a.begin_s for a in self.answers), max(a.last_s for a in self.answers)
        return sum(a.num_tokens for a in self.answers) / (end_s - begin_s)

    @property
    def ttft_s(self) -> float:
        return statistics.median(a.first_s - a.begin_s for a in self.answers)

    @property
    def tpot_s(self) -> float:
        return statistics.median((a.last_s - a.first_s) / max(1, a.num_tokens - 1) for a in self.answers)


def prompt(seed: int, num_tokens: int) -> list[int]:
    """Tokens that no other prompt begins with."""
    rng = random.Random(f"{seed} of {num_tokens}")
    return [rng.randrange(300, 1000) for _ in range(num_tokens)]


async def ask(port: int, model: str, token_ids: list[int], num_output: int) -> Answer:
    """One streamed completion of exactly `num_output` tokens."""
    body = json.dumps(
        {
            "model": model,
            "prompt": token_ids,
            "max_tokens": num_output,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    begin_s = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}Content-Type: application/json\r\n\r\n{body}".encode())
    first_s = last_s = 0.0
    tail = b""
    while data := await reader.read(1 << 16):
        now_s = time.perf_counter()
        if b'"text"' in data:
            first_s = first_s or now_s
            last_s = now_s
        tail = (tail + data)[-2000:]
    writer.close()
    usage = re.findall(rb'"completion_tokens": ?(\d+)', tail)
    if not first_s or not usage or int(usage[-1]) != num_output:
        raise RuntimeError(f"{model} answered {tail[-500:]!r}")
    return Answer(begin_s, first_s, last_s, num_output)


async def _load(
    port: int, model: str, seed: int, clients: int, requests: int, num_input: int, num_output: int
) -> Load:
    load, seeds = Load(), itertools.count(seed)
    left = iter(range(requests))

    async def client() -> None:
        for _ in left:
            load.answers.append(await ask(port, model, prompt(next(seeds), num_input), num_output))

    async with asyncio.timeout(MOST_WAIT_S), asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    return load


def load(
    port: int, model: str, seed: int, clients: int, requests: int, num_input: int, num_output: int
) -> Load:
    """`requests` requests by `clients` clients, each of which asks again when it is answered.

    Prompts are those of `seed` and of the numbers behind it.
    """
    return asyncio.run(_load(port, model, seed, clients, requests, num_input, num_output))
