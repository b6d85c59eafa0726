"""Write docs/options.md: every option of every command, from the table of options.

python -m tools.option_table > docs/options.md
"""

from collections.abc import Iterator

import click

from sundog.cli import COMMANDS, cli
from sundog.options.row import COMMON, OptionRow, Switch
from sundog.options.takes import Command

HEAD = """# Options

Every option of the commands, by the headings of `--help-all`. Each is also a key of `config.toml` and a
keyword of the functions of `import sundog`, with underscores. Options marked † are rare: the help names them
at its end alone. Any option may be given as `--set NAME=VALUE`, too: `--set max-overtakes=4` is
`--max-overtakes 4`, and `--set host-overhead=false` is `--no-host-overhead`.

This page is made by `python -m tools.option_table > docs/options.md`."""
COLUMNS = "| option | values | default | what it is | commands |\n|---|---|---|---|---|"
Found = dict[str, dict[tuple[str, str], tuple[OptionRow, list[str]]]]
"""Options of each section by flag and help text, with the commands that have them."""


def commands() -> Iterator[Command]:
    """Yield the commands that have options of the table."""
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        if isinstance(command, Command):
            yield command


def rows_by_section() -> Found:
    """Return the options of each section; one that differs between commands has two rows."""
    found: Found = {COMMON: {}}
    for command in commands():
        for row in command.rows.values():
            section = found.setdefault(row.section, {})
            _, names = section.setdefault((row.flag, row.help), (row, []))
            names.append(str(command.name))
    return found


def page() -> str:
    """Return the text of the page."""
    parts = [HEAD]
    for section, rows in rows_by_section().items():
        title = "Common" if section == COMMON else section
        parts.append("\n".join([f"## {title}", "", COLUMNS, *(_line(*each) for each in rows.values())]))
    return "\n\n".join(parts) + "\n"


def _line(row: OptionRow, names: list[str]) -> str:
    is_switch = isinstance(row.kind, Switch)
    paired = isinstance(row.kind, Switch) and row.kind.pair
    flags = (*row.names, f"--[no-]{row.flag[2:]}" if paired else row.flag)
    has_default = row.default is not None and row.default is not False and row.default != ()
    cells = (
        ", ".join(f"`{each}`" for each in flags) + (" †" if row.rare else ""),
        "" if is_switch else f"`{_cell(row.kind.metavar)}`",
        f"`{_cell('on' if row.default is True else str(row.default))}`" if has_default else "",
        _cell(row.help).replace("<", "&lt;").replace("FILE.py:NAME", "`FILE.py:NAME`"),
        ", ".join(names),
    )
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    """Print the page."""
    print(page(), end="")


if __name__ == "__main__":
    main()
