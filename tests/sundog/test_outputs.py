"""No command replaces a file that it reads, or writes two results into one file."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sundog.actors.config import ConfigError
from sundog.cli import cli
from sundog.options.outputs import WRITTEN, check_apart

SPEC = """
duration_s = 5
arrivals = {kind = "poisson", rate_per_s = 1}
prompt = {kind = "fixed", tokens = 100}
output = {kind = "fixed", tokens = 20}
"""
PLAN = ("plan", "spec.toml", "--slo", "p95(ttft)<9", "--gpu", "h100")


def test_every_option_that_names_a_file_to_write_is_in_the_list() -> None:
    """By its help: all say that a file is written, or drawn to, or logged in."""
    context = click.Context(cli)
    commands = [cli.get_command(context, name) for name in cli.list_commands(context)]
    found = {
        parameter.name
        for command in commands
        if command is not None
        for parameter in command.params
        if parameter.metavar == "FILE" and any(word in help_of(parameter) for word in WRITING)
    }
    assert found == {*WRITTEN} - {"kustomize"}


WRITING = ("to write", "write ", "to draw", "draw ", "for each step")


def help_of(parameter: click.Parameter) -> str:
    """The help of an option in small letters."""
    return str(getattr(parameter, "help", "")).lower()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("workload", "spec.toml", "-o", "spec.toml"), "-o would replace spec.toml, which is read"),
        (("workload", "spec.toml", "-o", "link.toml"), "-o would replace spec.toml, which is read"),
        (("replay", "t.jsonl", "--step-log", "./t.jsonl"), "--step-log would replace t.jsonl"),
        (("trace", "t.jsonl", "u.jsonl", "-o", "u.jsonl"), "-o would replace u.jsonl"),
        (("calibrate", "t.jsonl", "-o", "t.jsonl"), "-o would replace t.jsonl"),
        (("export", "own.py:Own", "-o", "own.py"), "-o would replace own.py"),
        ((*PLAN, "--manifest", "spec.toml"), "--manifest would replace spec.toml"),
        ((*PLAN, "--prices", "k/kustomization.yaml", "--kustomize", "k"), "--kustomize would replace k/k"),
        ((*PLAN, "--dynamo", "x.yaml", "--manifest", "x.yaml"), "--manifest and --dynamo name one file, x"),
        (("sweep", "spec.toml", "--gpu", "b200,gpu.svg", "--figure", "gpu.svg"), "--figure would replace g"),
    ],
)
def test_what_is_read_is_not_replaced(
    words: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By other spellings and links, too; all files are as they were."""
    monkeypatch.chdir(tmp_path)
    for name in ("spec.toml", "t.jsonl", "u.jsonl", "own.py", "gpu.toml", "gpu.svg", "k/kustomization.yaml"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(SPEC)
    Path("link.toml").symlink_to("spec.toml")
    done = CliRunner().invoke(cli, [*words])
    message = str(done.exception) + done.output
    assert done.exit_code and told in message, message
    assert {path.read_text() for path in tmp_path.rglob("*") if path.is_file()} == {SPEC}
    assert not Path("x.yaml").exists()


def test_a_device_and_other_files_may_be_written(tmp_path: Path) -> None:
    (spec := tmp_path / "spec.toml").write_text(SPEC)
    check_apart({"output": "/dev/stdout", "figure": "/dev/stdout", "source": str(spec)})
    check_apart({"output": tmp_path / "other.toml", "kustomize": str(tmp_path), "source": str(spec)})
    check_apart({"output": None, "source": (str(spec), str(spec))})
    with pytest.raises(ConfigError, match="-o would replace"):
        check_apart({"output": spec, "sources": ("http://x", str(spec))})
