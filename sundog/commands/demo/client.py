"""`python -m sundog.commands.demo.client URL`: the demo's client, a process of its own as any client is.

It asks its questions round after round, and before each round others, of which a cost model is made; then it
prints the answers of the first round on stdout, as JSON. At a terminal that round is drawn on stderr while it
is answered. Drawing takes 2 ms a token, twice as long as a step: the server must not do it, and no round
whose times count has any of it.
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
"""The four with long answers first, so that the last two wait for a running slot, on a fast machine, too."""
NUM_ROUNDS = 6
"""People watch the first; the times of the others count."""
WARM_UP = "Hello!"
PRACTICE = (
    "Tell me a story about a cat named Tom.",
    "What is 23 + 48?",
    "Count up from 1 to 15.",
    "What is a token?",
)
AT_ONCE = (2, 4)
"""The numbers of other questions asked at once before each round, in the same minute as the round."""
GAP_S = 0.01
"""The seconds between two questions: the first is still being answered when the last arrives."""
MAX_TOKENS = 120
INTERRUPTED = 130


@dataclass(slots=True)
class Answer:
    """A question and its answer as the client sees them."""

    question: str
    text: str = ""


def name_of(turn: int, number: int) -> str:
    """Return the session of a question in a round, by which the server knows it."""
    return f"question-{turn}-{number}"


def answers_table(answers: Sequence[Answer]) -> Table:
    """Return the questions beside their answers so far."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", max_width=22)
    table.add_column()
    for answer in answers:
        table.add_row(answer.question, answer.text)
    return table


async def play(url: str) -> list[Answer]:
    """Warm up, then practise and ask all questions in each round; returns the answers of the first."""
    client = ServerClient.of(url)
    await _ask(client, Answer(WARM_UP))
    rounds: list[list[Answer]] = []
    for turn in range(NUM_ROUNDS):
        for at_once in AT_ONCE:
            await _ask_all(client, [Answer(question) for question in PRACTICE[-at_once:]])
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


async def _ask_all(
    client: ServerClient, answers: Sequence[Answer], names: Sequence[str] | None = None
) -> None:
    async with trio.open_nursery() as asking:
        for number, answer in enumerate(answers):
            asking.start_soon(_ask, client, answer, number * GAP_S, names[number] if names else None)


async def _ask(client: ServerClient, answer: Answer, delay_s: float = 0.0, name: str | None = None) -> None:
    await trio.sleep(delay_s)
    fields = {"temperature": 0, "max_tokens": MAX_TOKENS, **({"session": name} if name else {})}
    conversation = Conversation("sundog-tiny", None, fields)
    async for part in conversation.say(client, answer.question):
        answer.text += part.text


def main() -> None:
    """Ask, and print the answers."""
    try:
        answers = trio.run(play, sys.argv[1])
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    json.dump([asdict(answer) for answer in answers], sys.stdout)


if __name__ == "__main__":
    main()
