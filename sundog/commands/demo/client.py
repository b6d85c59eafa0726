"""`python -m sundog.commands.demo.client URL`: the demo's client, a process of its own like any client.

It sends its questions in several repetitions, and before each one other questions, to fit a cost model; then
it prints the answers of the first repetition on stdout, as JSON. At a terminal that repetition is drawn on
stderr while it is answered. Drawing takes 2 ms a token, twice as long as a step: the server must not do it,
and no timed repetition includes any of it.
"""

import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass

import trio
from rich.console import Console
from rich.live import Live
from rich.table import Table

from sundog.runtime.load.conversation import Conversation
from sundog.runtime.load.server_client import ServerClient

QUESTIONS = (
    "Tell me a story about a dragon named Luna.",
    "Count down from 20 to 1.",
    "What is Sundog?",
    "What is the KV cache?",
    "What is 17 + 25?",
    "What is rocket backwards?",
)
"""Questions. The first four have long answers, so that the last two wait for a running slot even on a fast
machine.
"""
NUM_ROUNDS = 10
"""Number of repetitions: the first is shown while it runs, the others are timed."""
WARM_UP = "Hello!"
PRACTICE = (
    "Tell me a story about a dragon named Leo.",
    "Count down from 21 to 1.",
    "Count down from 18 to 1.",
    "What is the prefix cache?",
    "What is 23 + 48?",
    "What is castle backwards?",
)
"""Questions asked before each repetition, in the same way, with answers about as long, so that as many steps
have as many decodes: the embedded model's have 112, 75, 63, 48, 35 and 35 tokens, and those of `QUESTIONS`
109, 71, 66, 49, 35 and 35.
"""
GAP_S = 0.01
"""Seconds between two questions: the first is still being answered when the last arrives."""
MAX_TOKENS = 120
INTERRUPTED = 130


@dataclass(slots=True)
class Answer:
    """Question and its answer as the client sees them."""

    question: str
    text: str = ""


def name_of(turn: int, number: int, *, is_practice: bool = False) -> str:
    """Return the session of a question in a repetition, by which the server's record identifies it."""
    return f"{'practice' if is_practice else 'question'}-{turn}-{number}"


def answers_table(answers: Sequence[Answer]) -> Table:
    """Return a table of the questions and their answers so far."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", max_width=22)
    table.add_column()
    for answer in answers:
        table.add_row(answer.question, answer.text)
    return table


async def play(url: str) -> list[Answer]:
    """Warm up, then send practice questions and all questions in each repetition; return the first
    answers.
    """
    client = ServerClient.of(url)
    await _ask(client, Answer(WARM_UP))
    rounds: list[list[Answer]] = []
    for turn in range(NUM_ROUNDS):
        practice = [Answer(question) for question in PRACTICE]
        await _ask_all(client, practice, [name_of(turn, n, is_practice=True) for n in range(len(practice))])
        answers = [Answer(question) for question in QUESTIONS]
        names = [name_of(turn, number) for number in range(len(answers))]
        with nullcontext() if turn else _drawn(answers):
            await _ask_all(client, answers, names)
        rounds.append(answers)
    await client.close()
    return rounds[0]


def _drawn(answers: list[Answer]) -> AbstractContextManager[object]:
    console = Console(stderr=True)
    if not console.is_terminal:
        return nullcontext()
    return Live(get_renderable=lambda: answers_table(answers), console=console, transient=True)


async def _ask_all(client: ServerClient, answers: Sequence[Answer], names: Sequence[str]) -> None:
    async with trio.open_nursery() as asking:
        for number, (answer, name) in enumerate(zip(answers, names, strict=True)):
            asking.start_soon(_ask, client, answer, number * GAP_S, name)


async def _ask(client: ServerClient, answer: Answer, delay_s: float = 0.0, name: str | None = None) -> None:
    await trio.sleep(delay_s)
    fields = {"temperature": 0, "max_tokens": MAX_TOKENS, **({"session": name} if name else {})}
    conversation = Conversation("sundog-tiny", None, fields)
    async for part in conversation.say(client, answer.question):
        answer.text += part.text


def main() -> None:
    """Send the questions, and print the answers."""
    try:
        answers = trio.run(play, sys.argv[1])
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    json.dump([asdict(answer) for answer in answers], sys.stdout)


if __name__ == "__main__":
    main()
