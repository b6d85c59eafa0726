"""The embedded model behind HTTP, asked several questions at once."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import httpx
import trio
from rich.console import Console
from rich.live import Live
from rich.table import Table

from actors.api.context import ServedModel
from actors.api.serve_graph import serve_graph
from actors.api.server_options import ServerOptions
from actors.engine.backend import Backend
from runtime.serve import RealModel
from sundog.commands.demo.worlds import CONFIG, LIMITS, Run

QUESTIONS = (
    "Tell me a story about a dragon named Luna.",
    "What is 17 + 25?",
    "What is rocket backwards?",
    "What is Sundog?",
    "What is the KV cache?",
    "Count down from 20 to 1.",
)
WARM_UP = "Hello!"
PRACTICE = (
    "Tell me a story about a cat named Tom.",
    "What is 23 + 48?",
    "Count up from 1 to 15.",
    "What is a token?",
)
ROUNDS, AT_ONCE = 3, (1, 2, 4)
"""Other questions, of which a cost model is made: how often, and how many at once."""
GAP_S = 0.03
"""Between two questions: the first is still being answered when the last arrives."""
MAX_TOKENS = 120


@dataclass(slots=True)
class Answer:
    """One question as its client sees it."""

    question: str
    text: str = ""
    asked_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0


async def serve_and_ask(
    console: Console, model: RealModel, run: Run, new_backend: Callable[[int], Backend]
) -> list[Answer]:
    """Serve on a free port; ask other questions, to learn what steps take, then all of these; and stop."""
    stop, ready, urls = trio.Event(), trio.Event(), list[str]()

    def on_ready(url: str) -> None:
        urls.append(url)
        ready.set()

    answers = [Answer(question) for question in QUESTIONS]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            partial(
                serve_graph,
                CONFIG,
                new_backend,
                ServedModel(model.name, LIMITS.max_model_len, int(time.time())),
                model.tokenizer,
                model.vocabulary,
                ServerOptions(port=0),
                on_ready=on_ready,
                stop=stop,
                listeners=run.listeners(),
            )
        )
        await ready.wait()
        async with httpx.AsyncClient(base_url=urls[0], timeout=60) as client:
            await _practise(client)
            with Live(_answers(answers), console=console, auto_refresh=False) as live:
                async with trio.open_nursery() as asking:
                    for number, answer in enumerate(answers):
                        asking.start_soon(
                            _ask,
                            client,
                            answer,
                            number * GAP_S,
                            lambda: live.update(_answers(answers), refresh=True),
                        )
        stop.set()
    if not console.is_terminal:
        console.line()
    return answers


def num_practised() -> int:
    """Requests before the first question."""
    return 1 + ROUNDS * sum(AT_ONCE)


async def _practise(client: httpx.AsyncClient) -> None:
    """Other questions, in rounds of more and more at once, after one that warms up."""
    await _ask(client, Answer(WARM_UP), 0.0, lambda: None)
    for at_once in AT_ONCE * ROUNDS:
        async with trio.open_nursery() as asking:
            for number, question in enumerate(PRACTICE[-at_once:]):
                asking.start_soon(_ask, client, Answer(question), number * GAP_S, lambda: None)


async def _ask(
    client: httpx.AsyncClient, answer: Answer, delay_s: float, on_text: Callable[[], None]
) -> None:
    """Stream one greedy answer."""
    await trio.sleep(delay_s)
    body = {
        "messages": [{"role": "user", "content": answer.question}],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "stream": True,
    }
    answer.asked_s = trio.current_time()
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            delta = json.loads(line[6:])["choices"][0]["delta"]
            if delta.get("content"):
                answer.last_s = trio.current_time()
                answer.first_s = answer.first_s or answer.last_s
                answer.text += delta["content"]
                on_text()


def _answers(answers: list[Answer]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", max_width=22)
    table.add_column()
    for answer in answers:
        table.add_row(answer.question, answer.text)
    return table
