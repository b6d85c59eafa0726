"""Command line: one file per command, imported when the command is used.

Click is imported only in this package, and only here may a module use both `runtime` and `sim`. Law:
importing this module loads neither of them, so that `--help` is quick, and simulating never imports torch.
stdout is results; progress and remarks go to stderr.
"""

from importlib import import_module

import click

from sundog import fast
from sundog.actors.core.names import unknown
from sundog.ends import Stopped, interrupted, run_to_its_end

COMMANDS = (
    "bench",
    "calibrate",
    "capacity",
    "chat",
    "compare",
    "dashboard",
    "demo",
    "emulate",
    "explain",
    "export",
    "figure",
    "perfetto",
    "plan",
    "replay",
    "report",
    "schedule",
    "serve",
    "sweep",
    "trace",
    "validate",
    "walk",
    "workload",
)
"""Commands, each a function in the module of its name."""


class Commands(click.Group):
    """Group of all commands in `COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"sundog.commands.{cmd_name}"), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command as click does; the error for a misspelt one names the nearest."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise unknown("command", args[0], COMMANDS)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Invoke the command as click does, with a message about what Ctrl-C interrupted (see
        `sundog.ends`).
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Stopped(str(error), interrupted(error)) from None
        except click.NoSuchOption as error:
            raise self._of_another(ctx, error) from None

    def _of_another(self, ctx: click.Context, error: click.NoSuchOption) -> click.UsageError:
        asked = "" if error.ctx is None else error.ctx.info_name
        other = {"serve": "emulate", "emulate": "serve"}.get(asked or "")
        command = None if other is None else self.get_command(ctx, other)
        if command is None or not any(
            error.option_name in (*each.opts, *each.secondary_opts) for each in command.params
        ):
            return error
        return click.UsageError(f"{error.option_name} is an option of `sundog {other}`, not of `{asked}`")


def _number() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("sundog")
    except PackageNotFoundError:
        return "not installed"


def _version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"sundog {_number()}, {fast.how()}")
        context.exit()


def _install_completion(context: click.Context, _option: click.Parameter, shell: str | None) -> None:
    if shell is not None and not context.resilient_parsing:
        from sundog.completion import install

        install(shell)
        context.exit()


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version, and whether the simulator is compiled.",
)
@click.option(
    "--install-completion",
    is_flag=False,
    flag_value="auto",
    metavar="[bash|zsh|fish]",
    is_eager=True,
    expose_value=False,
    callback=_install_completion,
    help="Let the shell complete commands, options and values.",
)
@click.pass_context
def cli(context: click.Context) -> None:
    """LLM serving you can understand, change and predict."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main() -> None:
    """Run the command line, and exit."""
    run_to_its_end(cli)


if __name__ == "__main__":
    main()
