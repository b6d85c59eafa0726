"""`sundog --install-completion`: completion of commands, options and their values in shells.

Click generates the script. Law: the line in the shell's own file is added once, however often the command
runs.
"""

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from sundog.actors.config import ConfigError
from sundog.ends import remark, writing

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_SUNDOG_COMPLETE"
"""Environment variable by which a shell requests completions."""
PROGRAM = "sundog"


def install(asked: str) -> None:
    """Write a shell's script and load it from the shell's start file; `auto` detects the shell."""
    shell = Path(os.environ.get("SHELL", "")).name if asked == "auto" else asked
    if shell not in SHELLS:
        known = ", ".join(SHELLS)
        raise ConfigError(f"--install-completion: {shell or 'no shell'} is not known; give {known}")
    kind = get_completion_class(shell)
    assert kind is not None, shell
    script = kind(click.Command(PROGRAM), {}, PROGRAM, VARIABLE).source()
    home = Path.home()
    configs = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    if shell == "fish":  # which reads this folder by itself
        _write(configs / "fish" / "completions" / f"{PROGRAM}.fish", script)
        return
    file = data / PROGRAM / f"completion.{shell}"
    _write(file, script)
    own = home / ".bashrc" if shell == "bash" else Path(os.environ.get("ZDOTDIR") or home) / ".zshrc"
    begin = "autoload -Uz compinit && compinit; " if shell == "zsh" else ""
    _add_line(own, f'{begin}source "{file}"')
    remark(f"start a new shell, or: source {file}")


def _write(file: Path, text: str) -> None:
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    click.echo(file)


def _add_line(file: Path, line: str) -> None:
    with writing(file):
        has = file.read_text(encoding="utf-8") if file.exists() else ""
        if line in has.splitlines():
            return
        with file.open("a", encoding="utf-8") as stream:
            stream.write(("" if not has or has.endswith("\n") else "\n") + line + "\n")
    click.echo(file)
