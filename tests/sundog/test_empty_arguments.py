"""An empty argument, such as a shell's unset variable, is refused by its name."""

import click
import pytest
from click.testing import CliRunner

from sundog.actors.config import ConfigError
from sundog.cli import cli

CONTEXT = click.Context(cli)
ARGUMENTS = [
    (name, parameter.name, [each for each in command.params if isinstance(each, click.Argument)])
    for name in cli.list_commands(CONTEXT)
    if (command := cli.get_command(CONTEXT, name)) is not None
    for parameter in command.params
    if isinstance(parameter, click.Argument) and not isinstance(parameter.type, click.Choice)
]


@pytest.mark.parametrize(("command", "empty", "arguments"), ARGUMENTS)
def test_an_empty_argument_is_no_folder(command: str, empty: str, arguments: list[click.Argument]) -> None:
    """Each of a command's, while the others are given: `serve ""` served the embedded model."""
    words = ["" if each.name == empty else "cdf" for each in arguments]
    done = CliRunner().invoke(cli, [command, *words])
    assert isinstance(done.exception, ConfigError), done.output
    assert str(done.exception).endswith("is '': give a text that is not empty")


def test_most_commands_have_arguments() -> None:
    assert len(ARGUMENTS) > 18
