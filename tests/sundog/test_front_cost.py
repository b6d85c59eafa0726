"""`--front-cost` and `--hop-cost` through the command line, and the API processes of emulated servers."""

import json
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
        ("--front-cost", "stages=1e9", f"stages is '1e9': {NUMBER}"),
        ("--front-cost", "stages=nan", f"stages is 'nan': {NUMBER}"),
        ("--front-cost", "stages=2,stages=3", "stages comes twice: give it once"),
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


def cost_file(path: Path, host: str) -> Path:
    """A cost file with these lines under `[host]`."""
    path.write_text(
        "[calibrated]\nstep = 0.01\nper_token = 1e-5\nper_context_token = 1e-8\nper_decode = 1e-5\n"
        f"per_prefill_pair = 1e-10\n[host]\n{host}\n"
    )
    return path


def test_a_cost_file_says_how_many_api_processes_there_are_unless_the_option_does(tmp_path: Path) -> None:
    file = cost_file(tmp_path / "cost.toml", "request_s = 0.01\napi_processes = 4")
    assert api_processes("--cost", str(file)) == 4
    assert api_processes("--cost", str(file), "--api-server-count", "2") == 2


def replayed(*words: object) -> str:
    done = warm.run("sundog", "replay", TRACE, "--limit", 40, "--json", "--no-ranges", "--cost", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_cost_file_says_in_how_many_stages_a_request_is_read(tmp_path: Path) -> None:
    """As the option does, which wins; services of 0.6 s at 2 requests a second overlap."""
    whole = cost_file(tmp_path / "whole.toml", "request_s = 0.6")
    staged = cost_file(tmp_path / "staged.toml", "request_s = 0.6\napi_stages = 3")
    ttft = [
        json.loads(replayed(*words))["ttft_s"]["mean"]
        for words in (
            (whole,),
            (whole, "--front-cost", "stages=3"),
            (staged,),
            (staged, "--front-cost", "stages=1"),
        )
    ]
    assert ttft[0] == ttft[3] < ttft[1] == ttft[2]


@pytest.mark.parametrize("stages", ["0", "1025", "1.5", "nan", "-1"])
def test_a_wrong_number_of_stages_in_a_cost_file_is_refused_by_name(stages: str, tmp_path: Path) -> None:
    file = cost_file(tmp_path / "cost.toml", f"request_s = 0.01\napi_stages = {stages}")
    done = warm.run("sundog", "replay", TRACE, "--cost", file)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1 and str(file) in done.stderr and "api_stages" in done.stderr
