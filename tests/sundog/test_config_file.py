"""`config.toml`: a run's options, to be run again from any folder."""

import json
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests import warm

ROOT = Path(__file__).parents[2]
TRACE = ROOT / "traces" / "chat-poisson-2rps-5min.jsonl.gz"


def sundog(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line, run in that folder."""
    return warm.run("sundog", *arguments, folder=folder)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a trace, a policy and a run of them."""
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy(TRACE, folder / "trace.jsonl.gz")
    (folder / "mine.py").write_text(
        "from sundog.actors.core.policies import Policy\n"
        "class Mine(Policy):\n"
        "    def rank(self, request, view):\n"
        "        return request.submit.num_prompt_tokens\n"
    )
    options = "--limit 40 --max-num-seqs 2 --policy mine.py:Mine --slo ttft=0.5 --no-async-scheduling"
    done = sundog(folder, "replay", "trace.jsonl.gz", *options.split(), "--json", "--out", "runs/first")
    assert done.returncode == 0, done.stderr
    (folder / "first.json").write_text(done.stdout)
    return folder


def test_a_run_is_run_again_from_any_folder(project: Path, tmp_path: Path) -> None:
    """Its trace with it, and its policy once it is named; the file says where they lie from where it lies."""
    config = tomllib.loads((project / "runs" / "first" / "config.toml").read_text())
    assert config["trace"] == "../../trace.jsonl.gz" and config["policy"] == "../../mine.py:Mine"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    moved = project.rename(tmp_path / "moved")
    config_file = str(moved / "runs/first/config.toml")
    policy = ("--policy", str(moved / "mine.py:Mine"))
    again = sundog(elsewhere, "replay", "--config", config_file, *policy, "--json")
    assert again.returncode == 0, again.stderr
    assert again.stdout == (moved / "first.json").read_text()


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        ('policy = "../../evil.py:Mine"', "--policy"),
        ('router = "../../evil.py:Mine"', "--router"),
        ('scaler = "keda,decode=../../evil.py:Mine"', "--scaler"),
        ('predictor = "../../evil.py"', "--predictor"),
    ],
)
def test_code_that_a_runs_file_names_is_not_run(line: str, flag: str, project: Path) -> None:
    """A run may be somebody else's: one line says how to run it all the same."""
    (project / "evil.py").write_text("open('it ran', 'w').close()\n")
    (project / "runs/first/config.toml").write_text(f'trace = "../../trace.jsonl.gz"\n{line}\n')
    done = sundog(project, "replay", "--config", "runs/first/config.toml")
    assert done.returncode == 2 and not done.stdout and done.stderr.count("\n") == 1
    assert "names code, which is not run unless you name it, too: if you trust it, add " + flag in done.stderr
    assert "evil.py" in done.stderr and not (project / "it ran").exists()


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_the_command_line_goes_before_the_file(project: Path) -> None:
    """An option that was on can be turned off, and another trace replayed."""
    config = "runs/first/config.toml"
    options = ("--config", config, "--policy", "mine.py:Mine", "--json", "--limit", "7")
    one = sundog(project, "replay", *options, "--async-scheduling")
    two = sundog(project, "replay", str(TRACE), *options)
    assert one.returncode == two.returncode == 0, one.stderr + two.stderr
    assert json.loads(one.stdout)["num_finished"] == json.loads(two.stdout)["num_finished"] == 7
    assert one.stdout != two.stdout


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("max_num_sequs = 3", "max_num_sequs is no option. Did you mean max_num_seqs?"),
        ("max_num_seqs = 0", "max_num_seqs is 0: give a whole number from 1"),
        ('max_num_seqs = "many"', "max_num_seqs is many: give a whole number"),
        ("max_num_seqs = true", "max_num_seqs is True: give a whole number"),
        ("watermark = nan", "watermark is nan: give a number from 0"),
        ('refuse_never_fit = "perhaps"', "refuse_never_fit is perhaps: give true or false"),
        ('out = "x"', "out is no option"),
        ("seed = = 3", "config.toml"),
        ('trace = "missing.csv"', "missing.csv"),
    ],
)
def test_a_file_is_refused_by_its_name_and_the_key(tmp_path: Path, line: str, message: str) -> None:
    """In one line."""
    config = tmp_path / "config.toml"
    config.write_text(f"{line}\n{'' if 'trace' in line else f'trace = {str(TRACE)!r}'}\n")
    done = sundog(tmp_path, "replay", "--config", str(config))
    assert done.returncode == 2 and done.stdout == ""
    assert message in done.stderr and str(tmp_path) in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_without_a_trace_a_file_is_not_enough(tmp_path: Path) -> None:
    """The command says what is missing."""
    (tmp_path / "config.toml").write_text("seed = 1\n")
    done = sundog(tmp_path, "replay", "--config", "config.toml")
    assert done.returncode == 2 and "TRACE" in done.stderr
