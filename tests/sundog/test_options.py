"""Table of options: each row of each command has bounds and a help text, and refuses in one line."""

import json
import math
import re
import subprocess
from dataclasses import fields
from pathlib import Path

import click
import click.testing
import pytest

from sundog.actors.config import ConfigError, EngineConfig, SchedulerConfig
from sundog.cli import COMMANDS, cli
from sundog.options.engine import EngineOptions
from sundog.options.row import ENGINE, SCHEDULER, OneOf, OptionRow, Real, Switch, Whole, rows
from sundog.options.simulation import LoadOptions, TargetOptions, TermsOptions
from sundog.options.takes import Command, Option
from sundog.sweeps.axes import axes, split_values
from tests import warm
from tests.test_layers import ROOT
from tools.option_table import page

TRACE = "traces/chat-poisson-2rps-5min.jsonl.gz"


def commands() -> list[Command]:
    """Every command there is."""
    context = click.Context(cli)
    found = [cli.get_command(context, name) for name in COMMANDS]
    return [command for command in found if isinstance(command, Command)]


ALL = [(command.name, row) for command in commands() for row in command.rows.values()]


def sundog(*arguments: str) -> subprocess.CompletedProcess[str]:
    return warm.run("sundog", *arguments)


def test_every_command_has_a_summary_that_is_not_cut_off() -> None:
    """One line of the list of commands, in a terminal of 80 columns."""
    assert len(commands()) == len(COMMANDS)
    text = click.testing.CliRunner().invoke(cli, ["--help"], terminal_width=80).output
    for command in commands():
        assert command.short_help, command.name
        assert re.search(rf"^  {command.name} +{re.escape(command.short_help)}$", text, re.MULTILINE)
        assert "..." not in command.short_help and command.short_help.endswith(".")


def test_every_option_says_what_it_is_for() -> None:
    """In a sentence; and no two options of a command have one name."""
    for command in commands():
        spellings = []
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help and parameter.help.endswith("."), (command.name, parameter.name)
                spellings += [*parameter.opts, *parameter.secondary_opts]
        assert len(spellings) == len(set(spellings)), command.name


def test_common_options_come_first_and_rare_ones_have_sections() -> None:
    """In the whole help of `replay` and `serve`."""
    for name in ("replay", "serve"):
        text = click.testing.CliRunner().invoke(cli, [name, "--help-all"]).output
        places = [text.index(part) for part in ("\nOptions:", "--max-num-seqs", "\nKV cache:", "--watermark")]
        assert places == sorted(places)


@pytest.mark.parametrize("name", ["serve", "emulate", "replay", "sweep"])
def test_help_shows_few_options_and_names_where_the_others_are(name: str) -> None:
    """A line for each; `--help-all` shows every one of them; the rare ones it names at its end."""
    command = next(each for each in commands() if each.name == name)
    short, whole = (
        click.testing.CliRunner().invoke(cli, [name, option]).output for option in ("--help", "--help-all")
    )

    def shown(text: str) -> set[str]:
        return {row.flag for row in command.rows.values() if re.search(rf"^  .*{row.flag}\b", text, re.M)}

    rare = {row.flag for row in command.rows.values() if row.rare}
    assert {"--max-num-seqs", "--policy"} <= shown(short)
    assert shown(whole) == {row.flag for row in command.rows.values()} - rare and len(rare) > 15
    end = whole.partition("--set takes rare options")[2].replace("-\n", "-")
    assert all(f"{flag[2:]}" in end for flag in rare)
    assert "--help-all shows further options: " in short and "further options:" not in whole
    hidden = {row.section for row in command.rows.values() if row.flag not in {*shown(short), *rare}}
    assert all(section in " ".join(short.split()) for section in hidden)


def test_the_help_of_every_command_is_read_at_a_glance() -> None:
    """Fewer than forty lines of at most eighty columns, and no option without words of its own."""
    for command in commands():
        text = click.testing.CliRunner().invoke(cli, [command.name or "", "--help"], terminal_width=80).output
        lines = text.rstrip().splitlines()
        assert len(lines) < 40 and max(map(len, lines)) <= 80, (command.name, len(lines))
        assert not re.findall(r"^  -\S+( [^ ]+)?$", text, re.MULTILINE), command.name


def given(*arguments: str) -> dict[str, object]:
    """The values that `serve` takes from the arguments, and its defaults."""
    (command,) = [each for each in commands() if each.name == "serve"]
    return command.make_context("serve", list(arguments)).params


def test_set_is_the_option_of_that_name() -> None:
    """With hyphens or underscores, before or after others; a switch is put on or off."""
    for words in (["--set", "max-overtakes=4"], ["--set=max_overtakes=4"], ["--max-overtakes", "4"]):
        assert given(*words, "--max-num-seqs", "8")["max_overtakes"] == 4
    assert given("--max-overtakes", "4", "--set", "max-overtakes=5")["max_overtakes"] == 5
    assert given("--set", "debug=on")["debug"] is True and given("--set", "debug=off")["debug"] is False
    assert given("--set", "async-scheduling=false")["async_scheduling"] is False
    many = given("--set", "allowed-origins=https://a", "--set", "allowed-origins=https://b")
    assert many["allowed_origins"] == ("https://a", "https://b")
    for text, said in (
        ("max-overtaks=4", "there is no such option. Did you mean max-overtakes?"),
        ("max-overtakes", "give NAME=VALUE"),
        ("max-overtakes=-1", "--max-overtakes is -1: give a whole number"),
        ("debug=maybe", "--debug is maybe: give true or false"),
    ):
        with pytest.raises(ConfigError, match=re.escape(said)):
            given("--set", text)


def test_the_page_of_options_is_what_the_table_says() -> None:
    """`python -m tools.option_table > docs/options.md` writes it."""
    assert (ROOT / "docs/options.md").read_text(encoding="utf-8") == page()


def wrong_values(row: OptionRow) -> list[object]:
    """What the row must not take: just outside its bounds, not finite, of another type."""
    kind = row.kind
    if isinstance(kind, Whole):
        return [kind.least - 1, kind.most + 1, "1.5", "nan", "", "x", 1.0, True, None, "9" * 5000]
    if isinstance(kind, Real):
        beyond = [math.nextafter(kind.least, -math.inf), math.nextafter(kind.most, math.inf)]
        bounds = [kind.least] * kind.above + [kind.most] * kind.below
        return [*beyond, *bounds, "nan", math.nan, math.inf, "-inf", "", "x", True, None, 10**400]
    if isinstance(kind, OneOf):
        return ["", "no-such-word", 1, None, True]
    if isinstance(kind, Switch):
        return ["", "maybe", 2, None]
    return ["", 3, None, True, ["a"]]


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(("command", "row"), ALL, ids=[f"{command} {row.flag}" for command, row in ALL])
def test_every_option_refuses_what_is_out_of_its_bounds(command: str, row: OptionRow) -> None:
    """By its name, in one line; and takes its own default."""
    for value in wrong_values(row):
        with pytest.raises(ConfigError, match=rf"^{re.escape(row.flag)} is .*: .*") as caught:
            row.take(value)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 200
    if row.default is not None and not row.many:
        assert row.take(row.default) == row.default
    if isinstance(row.kind, Whole | Real):
        assert row.kind.least < row.kind.most < math.inf
    assert row.kept or row.to is None or row.name == "debug"


def test_a_row_that_sets_the_configuration_is_called_as_its_field() -> None:
    """Of the scheduler's limits, or of the engine's configuration; none is set by two rows."""
    known = {SCHEDULER: SchedulerConfig, ENGINE: EngineConfig}
    set_by_rows = [(row.to, row.name) for row in rows(EngineOptions) if row.to is not None]
    assert set_by_rows and len(set_by_rows) == len(set(set_by_rows))
    for part, name in set_by_rows:
        assert name in {field.name for field in fields(known[str(part)])}


def test_what_is_not_given_stays_unset_all_the_way() -> None:
    """The number of blocks is None until a backend has said it."""
    assert EngineOptions().config(4096).scheduler.num_gpu_blocks is None
    assert EngineOptions(num_gpu_blocks=300).config(4096).scheduler.num_gpu_blocks == 300


REFUSED = [
    ("--step-scale", "nan", "above 0 to 1,000"),
    ("--step-scale", "0", "above 0"),
    ("--gpu-price-per-h", "-1", "from 0"),
    ("--seed", "-1", "from 0"),
    ("--max-model-len", "0", "from 1"),
    ("--max-num-seqs", "0", "from 1"),
    ("--num-gpu-blocks", "99999999999", "from 2 to 16,777,216"),
    ("--replicas", "100000", "from 1 to 4,096"),
    ("--watermark", "2", "from 0 to below 1"),
    ("--gpu-memory-utilization", "nan", "above 0 to 1"),
    ("--block-size", "zero", "whole number"),
    ("--request-rate", "-3", "above 0"),
    ("--slo", "ttft=nan", "ttft"),
    ("--slo", "tfft=1", "ttft, tpot or e2e"),
]


@pytest.mark.parametrize(("flag", "value", "allowed"), REFUSED, ids=[f"{f} {v}" for f, v, _ in REFUSED])
def test_the_command_line_refuses_in_one_line(
    flag: str, value: str, allowed: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the option, the value and what is allowed; `replay`, `sweep` and `serve` alike."""
    from sundog.cli import main

    for command in (["replay", TRACE], ["sweep", "none.toml"], ["serve"]):
        known = next(c for c in commands() if c.name == command[0])
        if flag not in {row.flag for row in known.rows.values()}:
            continue
        monkeypatch.setattr("sys.argv", ["sundog", *command, flag, value])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        assert caught.value.code == 2 and out == ""
        assert err.startswith(f"sundog: {flag} is {value}: ") and allowed in err, err
        assert err.count("\n") == 1


def test_a_port_that_is_none_is_refused() -> None:
    """By the range of ports."""
    done = sundog("serve", "--port", "70000")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "sundog: --port is 70000: give a whole number from 0 to 65,535\n"


def test_replicas_and_blocks_that_no_memory_holds_are_refused_together() -> None:
    """Each is within its own bounds."""
    done = sundog("replay", TRACE, "--replicas", "4096", "--num-gpu-blocks", "16000000")
    assert done.returncode == 2 and "in each of 4,096 replicas" in done.stderr
    assert done.stderr.endswith("give fewer --replicas, or --num-gpu-blocks of at most 8192\n")
    assert len(done.stderr.splitlines()) == 1


def test_an_axis_takes_what_its_option_takes() -> None:
    """By the same row; unknown names suggest the nearest."""
    assert axes(["max-num-seqs=4,8", "--gpu=h100"]) == {"max_num_seqs": [4, 8], "gpu": ["h100"]}
    for text, message in (
        ("max_num_seqs=0", "--vary: max_num_seqs is 0: give a whole number"),
        ("watermark=nan", "--vary: watermark is nan"),
        ("max_num_sequs=3", "Did you mean max_num_seqs"),
        ("policy", "NAME=VALUE"),
        ("policy=fcfs,,vtc", "empty value"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            axes([text])
    with pytest.raises(ConfigError, match="twice"):
        axes(["gpu=h100", "--gpu=b200"])
    for record in (EngineOptions, TargetOptions, LoadOptions):
        for row in rows(record):
            if row.default not in (None, ()) and row.name != "seed":
                assert axes([f"{row.name}={row.default}"]) == {row.name: [row.default]}


def test_the_values_of_an_axis_may_hold_commas() -> None:
    """Between a policy's parameters, and after a backslash, which a policy's own reader takes."""
    assert split_values("fcfs,vtc:input_weight=1,output_weight=2,mlfq") == [
        "fcfs",
        "vtc:input_weight=1,output_weight=2",
        "mlfq",
    ]
    assert axes([r"policy=mine.py:Mine:label=x\, y,weight=2,fcfs", r"gpu=a\,b.toml,h100"]) == {
        "policy": [r"mine.py:Mine:label=x\, y,weight=2", "fcfs"],
        "gpu": ["a,b.toml", "h100"],
    }
    with pytest.raises(ConfigError, match="empty value"):
        split_values("a,")


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_sweep_tries_policies_whose_parameters_are_texts(tmp_path: Path) -> None:
    """With commas, spaces and all; through the command line, in processes of its own."""
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from sundog.actors.core.policies import Policy\n"
        "@dataclass(frozen=True)\n"
        "class Mine(Policy):\n"
        "    label: str = ''\n"
        "    weight: float = 1.0\n"
        "    def rank(self, request, view):\n"
        "        return self.weight * request.submit.num_prompt_tokens if ',' in self.label else 0\n"
    )
    (tmp_path / "w.toml").write_text(
        'duration_s = 10\n[arrivals]\nkind = "poisson"\nrate_per_s = 4\n'
        '[prompt]\nkind = "uniform"\nsmallest = 100\nlargest = 900\n[output]\nkind = "fixed"\ntokens = 20\n'
    )
    mine = f"{tmp_path}/mine.py:Mine"
    vary = rf"policy=fcfs,{mine}:label=a\, b,weight=2.5,{mine}:label=plain"
    done = sundog(
        *("sweep", f"{tmp_path}/w.toml", "--vary", vary, "--max-num-seqs", "1"),
        *("--replications", "2", "--jobs", "2", "--json"),
    )
    assert done.returncode == 0, done.stderr
    fcfs, ranked, unranked = (cell["runs"] for cell in json.loads(done.stdout)["cells"])
    assert fcfs == unranked != ranked


def test_limits_for_goodput_are_read_by_name() -> None:
    """In seconds."""
    assert TermsOptions(slo="ttft=0.5,tpot=0.05").service_level.limits_s == {"ttft": 0.5, "tpot": 0.05}
    assert TermsOptions().service_level.limits_s == {}


def test_a_model_is_given_once() -> None:
    """As vLLM takes it, or as an option; a folder that is none is refused by either way."""
    for arguments in (["no/such/folder"], ["--model", "no/such/folder"]):
        done = sundog("serve", *arguments)
        assert done.returncode == 2 and "no/such/folder" in done.stderr
    done = sundog("serve", "one", "--model", "two")
    assert done.returncode == 2 and "the model is given twice, one and --model two" in done.stderr


def test_options_are_declared_once() -> None:
    """No command declares a number or a text of its own beside the table."""
    for command in commands():
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not isinstance(parameter, Option):
                own = parameter.name in ("help", "help_all", "output", "set", "show_config")
                assert own or isinstance(parameter.type, click.Path), (command.name, parameter.name)
