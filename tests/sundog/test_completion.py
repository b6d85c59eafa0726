"""Completion in shells: the offered words, and the line in the shell's start file."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sundog.test_runs import refused, sundog

SCRIPT = Path(sys.executable).with_name("sundog")


def completed(line: str) -> list[str]:
    """What bash is told for the last word of a line; `file` lets it complete files."""
    words = line.split(" ")
    env = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_SUNDOG_COMPLETE": "bash_complete"}
    done = subprocess.run([SCRIPT], env=os.environ | env, capture_output=True, text=True, check=True)
    rows = (row.partition(",") for row in done.stdout.splitlines())
    return ["(files)" if kind == "file" else value for kind, _, value in rows]


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("sundog ser", ["serve"]),
        ("sundog serve --max-num-b", ["--max-num-batched-tokens"]),
        ("sundog replay --gpu h1", ["h100"]),
        ("sundog serve --policy shortest-p", ["shortest-prompt"]),
        ("sundog replay --router session", ["session-affinity"]),
        ("sundog replay --model qwen3-8", ["qwen3-8b"]),
        ("sundog emulate qwen3-8", ["qwen3-8b"]),
        ("sundog serve qwen3-8", ["(files)"]),
        ("sundog replay --gpu ./m", ["(files)"]),
        ("sundog serve --tool-call-parser h", ["hermes"]),
    ],
)
def test_commands_options_and_values_are_completed(line: str, values: list[str]) -> None:
    assert completed(line) == values


def test_bash_completes_once_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a shell that reads its own file, to which one line was added, however often that was asked for."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    (tmp_path / ".bashrc").write_text("alias mine=true")
    for _ in range(2):
        assert sundog("--install-completion", "bash").returncode == 0
    own = (tmp_path / ".bashrc").read_text()
    assert own.splitlines()[0] == "alias mine=true" and len(own.splitlines()) == 2
    begin = "source ~/.bashrc; COMP_WORDS=(sundog replay --gpu h20); COMP_CWORD=3"
    ask = f'{begin}; _sundog_completion sundog; echo "${{COMPREPLY[@]}}"'
    path = f"{SCRIPT.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", ask], env=os.environ | {"PATH": path}, capture_output=True, text=True
    )
    assert done.stdout.split()[:2] == ["h20", "h200"], done.stderr


@pytest.mark.parametrize(
    ("shell", "file"),
    [("zsh", ".local/share/sundog/completion.zsh"), ("fish", ".config/fish/completions/sundog.fish")],
)
def test_other_shells_find_their_script(
    shell: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the shell of the environment; the shell itself, where it is installed, reads the script."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    done = sundog("--install-completion")
    assert done.returncode == 0 and str(tmp_path / file) in done.stdout
    text = (tmp_path / file).read_text()
    assert f"_SUNDOG_COMPLETE={shell}_complete" in text
    if shell == "zsh":
        assert f'source "{tmp_path / file}"' in (tmp_path / ".zshrc").read_text()
    if shutil.which(shell):
        subprocess.run([shell, "-n", tmp_path / file], check=True)


def test_a_shell_that_is_none_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given, and found in the environment."""
    refused(sundog("--install-completion", "powershell"), "powershell is not known; give bash, zsh, fish")
    monkeypatch.setenv("SHELL", "/bin/dash")
    refused(sundog("--install-completion"), "dash is not known")


@pytest.mark.parametrize("command", ["figure {} cdf -o a.svg", "report {}", "compare {} {}"])
def test_a_folder_that_is_not_there_does_not_exist(command: str, tmp_path: Path) -> None:
    """Rather than being no run."""
    missing = tmp_path / "missing"
    refused(sundog(*command.replace("{}", str(missing)).split()), f"{missing} does not exist")


def test_the_help_of_a_server_says_where_keys_are_asked() -> None:
    """Among what most people need."""
    for name in ("serve", "emulate"):
        assert "--api-key KEY" in sundog(name, "--help").stdout
