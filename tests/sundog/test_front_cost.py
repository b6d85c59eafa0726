"""`--front-cost` and `--hop-cost` through the command line, and the API processes of emulated servers."""

from dataclasses import fields
from pathlib import Path
from typing import TypeVar

import click
import pytest

from sundog.builds.emulated import emulated
from sundog.cli import cli
from sundog.options.engine import EngineOptions
from sundog.options.serving import EmulatedServing
from sundog.options.simulation import CostOptions
from tests import warm
from tests.test_layers import ROOT

TRACE = ROOT / "traces/chat-poisson-2rps-5min.jsonl.gz"
SECONDS = "give seconds from 0 to 10"
NUMBER = "give a whole number from 1 to 1024"


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("--front-cost", "request=nan", f"request is nan: {SECONDS}"),
        ("--front-cost", "response=0.1,prompt_token=inf", f"prompt_token is inf: {SECONDS}"),
        ("--front-cost", "output_token=-0.001", f"output_token is -0.001: {SECONDS}"),
        ("--front-cost", "request=soon", f"request is 'soon': {SECONDS}"),
        ("--front-cost", "response", f"response is '': {SECONDS}"),
        ("--front-cost", "request=0.1,request=0.2", "request comes twice: give it once"),
        (
            "--front-cost",
            "requests=0.1",
            "'requests' is unknown: give NAME=VALUE with a name of request, response, prompt_token,"
            " output_token, processes, stages",
        ),
        ("--front-cost", "processes=0", f"processes is 0: {NUMBER}"),
        ("--front-cost", "processes=1025", f"processes is 1025: {NUMBER}"),
        ("--front-cost", "stages=0", f"stages is 0: {NUMBER}"),
        ("--front-cost", "processes=1.5", f"processes is '1.5': {NUMBER}"),
        ("--hop-cost", "submit=2", "submit is 2.0: give seconds from 0 to 1"),
        ("--hop-cost", "output=1e400", "output is inf: give seconds from 0 to 1"),
        (
            "--hop-cost",
            "processes=2",
            "'processes' is unknown: give NAME=VALUE with a name of submit, token, output",
        ),
    ],
)
def test_a_wrong_cost_is_refused_in_one_line(option: str, value: str, reason: str) -> None:
    """It names the option, the field and what to give."""
    done = warm.run("sundog", "replay", TRACE, option, value)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr == f"sundog: {option} is {value}: {reason}\n"


R = TypeVar("R")


def api_processes(*words: str) -> int:
    """The number of simulated API processes of each engine that `sundog emulate` with these words has."""
    command = cli.get_command(click.Context(cli), "emulate")
    assert command is not None
    given = command.make_context("emulate", list(words)).params

    def record(kind: type[R]) -> R:
        return kind(**{each.name: given[each.name] for each in fields(kind)})  # type: ignore[arg-type]

    served = emulated("llama-3.2-1b", record(EmulatedServing), record(EngineOptions), record(CostOptions))
    return served.config.front.processes


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ((), 1),
        (("--api-server-count", "3"), 3),
        (("--api-processes", "3", "--front-cost", "request=0.02"), 3),
        (("--api-server-count", "3", "--front-cost", "processes=2"), 2),
        (("--front-cost", "processes=2"), 2),
    ],
)
def test_an_emulated_server_has_as_many_api_processes_as_doors(words: tuple[str, ...], number: int) -> None:
    """As vLLM has, unless the simulated ones are given a number of their own."""
    assert api_processes(*words) == number


def test_a_cost_file_says_how_many_api_processes_there_are_unless_the_option_does(tmp_path: Path) -> None:
    (file := tmp_path / "cost.toml").write_text(
        "[calibrated]\nstep = 0.01\nper_token = 1e-5\nper_context_token = 1e-8\nper_decode = 1e-5\n"
        "per_prefill_pair = 1e-10\n[host]\nrequest_s = 0.01\napi_processes = 4\n"
    )
    assert api_processes("--cost", str(file)) == 4
    assert api_processes("--cost", str(file), "--api-server-count", "2") == 2
