"""`sundog chat`: conversation with a served model, in the terminal."""

import sys
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from sundog.actors.config import ConfigError
from sundog.ends import Stopped, leaves, remark
from sundog.options.row import AnyText, Real, Whole, option
from sundog.options.takes import command, takes

if TYPE_CHECKING:
    from sundog.runtime.load.conversation import AnswerPart, Conversation
    from sundog.runtime.load.server_client import ServerClient

COMMANDS = (
    "/reset forgets what was said, /exit ends (as Ctrl-D does), Ctrl-C stops an answer, or drops a line"
)
PROMPT = "> "
STEERING = dict.fromkeys({*range(0x20), *range(0x7F, 0xA0)} - {ord("\n"), ord("\t")})
"""Control characters, which are removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """Options of a conversation: the model, and its sampling."""

    model: str | None = option(
        None, AnyText("NAME"), "The model's name on the server; its first model if not given."
    )
    system: str | None = option(None, AnyText("TEXT"), "System message.")
    max_tokens: int | None = option(None, Whole(1, 2**27), "Largest number of tokens of an answer.")
    temperature: float | None = option(None, Real(0, 1e6), "Sampling temperature; 0 is greedy.")
    api_key: str | None = option(
        None, AnyText("KEY"), "API key to send to the server.", envvar=("SUNDOG_API_KEY", "OPENAI_API_KEY")
    )


@command
@takes(ChatOptions)
@click.argument("url", default="http://127.0.0.1:8000")
def chat(asked: ChatOptions, url: str) -> None:
    """Chat with a model on a server.

    URL is any server with OpenAI's API; by default `sundog serve` on this machine. If stdin is not a
    terminal, it is one question: its answer goes to stdout, reasoning to stderr.
    """
    from sundog.builds.measuring import PROBE_S
    from sundog.runtime.load.conversation import Conversation
    from sundog.runtime.load.server_client import ServerClient

    client = ServerClient.of(url, asked.api_key)
    model = asked.model or _first_model(client, PROBE_S)
    given: dict[str, Any] = {"max_tokens": asked.max_tokens, "temperature": asked.temperature}
    fields = {name: value for name, value in given.items() if value is not None}
    conversation = Conversation(model, asked.system, fields)
    if sys.stdin.isatty():
        remark(f"{model} at {url}: {COMMANDS}")
        return _talk(client, conversation)
    try:
        question = sys.stdin.buffer.read().decode().strip()
    except UnicodeDecodeError as error:
        raise ConfigError(f"stdin is not UTF-8 at byte {error.start}: give the question as text") from None
    if not question:
        raise ConfigError("stdin is empty: write a question there, or run this at a terminal")
    if (trouble := _answer(client, conversation, question)) is not None:
        raise ConfigError(f"{url}: {trouble}")


def _talk(client: "ServerClient", conversation: "Conversation") -> None:
    with suppress(ImportError):
        import readline  # noqa: F401  # gives input() its history and keys
    while True:
        try:
            line = input(PROMPT).strip()
        except EOFError:
            return click.echo()
        except KeyboardInterrupt:
            click.echo()
            remark(COMMANDS)
            continue
        if line == "/exit":
            return None
        if line == "/reset":
            conversation.turns.clear()
        elif line.startswith("/"):
            remark(COMMANDS)
        elif line and (trouble := _answer(client, conversation, line)) is not None:
            remark(f"sundog: {trouble}")


class Shown:
    """Printer of an answer: reasoning is dimmed at a terminal, and goes to stderr if stdout is not one.

    Control sequences are removed: a model may have been tricked into writing them.
    """

    def __init__(self, at_terminal: bool) -> None:
        self._at_terminal, self._is_thinking = at_terminal, False

    def show(self, part: "AnswerPart") -> None:
        """Print one part; an answer begins a line of its own."""
        text = part.text.translate(STEERING)
        if self._is_thinking and not part.is_thought:
            click.echo("\n", err=not self._at_terminal)
        self._is_thinking = part.is_thought
        if not part.is_thought:
            click.echo(text, nl=False)
        elif self._at_terminal:
            click.secho(text, nl=False, dim=True)
        else:
            click.echo(text, nl=False, err=True)


def _first_model(client: "ServerClient", timeout_s: float) -> str:
    import trio

    from sundog.runtime.load.server import find_model

    async def find() -> str:
        try:
            return await find_model(client, timeout_s)
        finally:
            await client.close()

    return trio.run(find)


def _answer(client: "ServerClient", conversation: "Conversation", question: str) -> str | None:
    import trio

    from sundog.runtime.load.server_client import RequestFailed

    async def read() -> None:
        try:
            async with aclosing(conversation.say(client, question)) as parts:
                async for part in parts:
                    shown.show(part)
        finally:
            with trio.CancelScope(shield=True):
                await client.close()

    trouble, shown = None, Shown(sys.stdin.isatty())
    try:
        trio.run(read)
    except BaseException as error:
        causes = list(leaves(error))
        failed = next((cause for cause in causes if isinstance(cause, RequestFailed)), None)
        if failed is not None:
            trouble = str(failed)
        elif not any(isinstance(cause, KeyboardInterrupt) for cause in causes):
            raise
        elif not sys.stdin.isatty():
            raise Stopped("interrupted in the answer") from None
    click.echo()
    return trouble
