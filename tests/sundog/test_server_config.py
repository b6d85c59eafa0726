"""Configuration of a server: file, variables and command line, and the output of --show-config."""

import re
import tomllib
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import warm
from tests.live import live
from tests.sundog.test_runs import refused

YAML = """\
# as vLLM's users write it
model: llama-3.1-8b
served-model-name:
  - mine
  - also-mine
max_model_len: 2048
max-num-seqs: 12
api-key: from-the-file
enable-prefix-caching: no
speculative-config:
  method: ngram
  num_speculative_tokens: 4
  acceptance: 0.5
"""
TOML = """\
model = "llama-3.1-8b"
served-model-name = ["mine", "also-mine"]
max_model_len = 2048
max-num-seqs = 12
api-key = "from-the-file"
enable-prefix-caching = false
speculative-config = {method = "ngram", num_speculative_tokens = 4, acceptance = 0.5}
"""
FORMS = {"server.yaml": YAML, "server.yml": YAML, "server.toml": TOML}


def shown(*arguments: object, command: str = "emulate") -> dict[str, tuple[Any, str]]:
    """What `--show-config` prints: value and place by name; the value is None if there is none."""
    done = warm.run("sundog", command, *arguments, "--show-config")
    assert done.returncode == 0, done.stderr
    found: dict[str, tuple[Any, str]] = {}
    for line in filter(None, done.stdout.splitlines()):
        said, _, where = line.rpartition("  # ")
        if said.startswith("# "):
            name = said[2:].partition(" =")[0]
            found[name] = (None, where)
        elif said:
            ((name, value),) = tomllib.loads(said).items()
            found[name] = (value, where)
    return found


@pytest.fixture(params=sorted(FORMS))
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path: Path = tmp_path / request.param
    path.write_text(FORMS[request.param])
    return path


def test_each_place_comes_before_the_last(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default, the file, the variable, the command line: one step more, one value more."""
    assert shown()["max_num_seqs"] == (None, "default")
    assert shown("--config", file)["max_num_seqs"] == (12, str(file))
    monkeypatch.setenv("SUNDOG_MAX_NUM_SEQS", "13")
    assert shown("--config", file)["max_num_seqs"] == (13, "SUNDOG_MAX_NUM_SEQS")
    both = shown("--config", file, "--max-num-seqs", 14)
    assert both["max_num_seqs"] == (14, "command line")
    assert both["max_model_len"] == (2048, str(file))
    assert both["served_model_name"] == (["mine", "also-mine"], str(file))
    assert both["enable_prefix_caching"] == (False, str(file))
    assert (
        both["speculative_config"][0] == '{"method": "ngram", "num_speculative_tokens": 4, "acceptance": 0.5}'
    )


def test_the_argument_takes_the_place_of_the_files_model(file: Path) -> None:
    """And a model that is given twice on the command line is refused as ever."""
    assert shown("--config", file)["model"] == ("llama-3.1-8b", str(file))
    assert shown("qwen3-8b", "--config", file)["model"] == ("qwen3-8b", "command line")
    refused(warm.run("sundog", "emulate", "a", "--model", "b"), "the model is given twice")


def test_what_is_shown_is_a_file_that_says_the_same(file: Path, tmp_path: Path) -> None:
    """But for the key, which is never shown."""
    first = warm.run("sundog", "emulate", "--config", file, "--seed", 7, "--show-config")
    assert "from-the-file" not in first.stdout and "# api_key = (set, but not shown)" in first.stdout
    again = tmp_path / "again.toml"
    again.write_text(first.stdout)
    values = {name: value for name, (value, _) in shown("--config", file, "--seed", 7).items()}
    assert {name: value for name, (value, _) in shown("--config", again).items()} == values
    assert values["seed"] == 7


def test_every_option_of_a_server_is_shown_with_its_place() -> None:
    """Each once."""
    from sundog.cli import cli

    for name in ("serve", "emulate"):
        command = cli.get_command(cli.make_context("sundog", ["--version-not"], resilient_parsing=True), name)
        rows = command.rows  # type: ignore[union-attr]
        assert set(shown(command=name)) == set(rows)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "max-num-sequences: 3",
            ("max-num-sequences is no option of `sundog serve`", "Did you mean max-num-seqs?"),
        ),
        ("gpu: h100", ("gpu is no option of `sundog serve`",)),
        ("trace: a.jsonl", ("a run's config.toml is for `sundog replay`",)),
        ("port: abc", ("port is abc: give a whole number",)),
        ("port: 1\nport: 2", ("port is given twice",)),
        ("max_num_seqs: 1\nmax-num-seqs: 2", ("two spellings",)),
        ("- a", ("holds no options",)),
        ("{a", ("is not YAML",)),
        ("a: &x [*x]", ("a is no option",)),
        ("port: !!python/object/apply:os.system ['true']", ("is not YAML",)),
    ],
)
def test_a_wrong_file_is_one_line_with_its_name(line: str, words: tuple[str, ...], tmp_path: Path) -> None:
    """And its key."""
    path = tmp_path / "wrong.yaml"
    path.write_text(line)
    refused(warm.run("sundog", "serve", "--config", path), str(path), *words)


def test_files_of_another_kind_are_told_apart(tmp_path: Path) -> None:
    """No file, another ending, and each of the two meanings of --config given the other's file."""
    refused(warm.run("sundog", "serve", "--config", tmp_path / "no.toml"), "cannot be read")
    refused(warm.run("sundog", "serve", "--config", tmp_path / "a.json"), "ends in .toml, .yaml or .yml")
    refused(warm.run("sundog", "replay", "--config", "a.yaml", "t"), "a run's config.toml", "sundog serve")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("SUNDOG_PORT", "no", "SUNDOG_PORT: port is no: give a whole number"),
        ("SUNDOG_ENABLE_LORA", "maybe", "SUNDOG_ENABLE_LORA: enable_lora is maybe: give true or false"),
    ],
)
def test_a_wrong_variable_is_refused_by_its_name(
    name: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line."""
    monkeypatch.setenv(name, value)
    refused(warm.run("sundog", "serve"), words)


def test_variables_are_read_as_people_write_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switches as 1, lists as words or JSON; and Kubernetes' own, for a service called sundog, is no port."""
    monkeypatch.setenv("SUNDOG_ENABLE_LORA", "1")
    monkeypatch.setenv("SUNDOG_SERVED_MODEL_NAME", "a b")
    monkeypatch.setenv("SUNDOG_LORA_MODULES", '[{"name": "x", "path": "a b"}]')
    monkeypatch.setenv("SUNDOG_PORT", "tcp://10.0.0.1:8000")
    found = shown(command="serve")
    assert found["enable_lora"] == (True, "SUNDOG_ENABLE_LORA")
    assert found["served_model_name"][0] == ["a", "b"]
    assert found["lora_modules"][0] == ['{"name": "x", "path": "a b"}']
    assert found["port"] == (8000, "default")


def test_a_server_under_a_file_and_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its names, its context, its key; vLLM's variable stands in for the key, and the log says so."""
    path = tmp_path / "server.yaml"
    path.write_text(re.sub("api-key: .*\n", "", YAML))
    monkeypatch.setenv("SUNDOG_PORT", "0")
    monkeypatch.setenv("SUNDOG_GPU", "h200")
    monkeypatch.setenv("SUNDOG_MAX_NUM_SEQ", "3")
    monkeypatch.setenv("VLLM_API_KEY", "theirs")
    with live("sundog", "emulate", "--config", str(path)) as server:
        assert httpx.get(f"{server.url}/v1/models").status_code == 401
        known = httpx.get(f"{server.url}/v1/models", headers={"Authorization": "Bearer theirs"}).json()[
            "data"
        ]
        assert [each["id"] for each in known] == ["mine", "also-mine"] and known[0]["max_model_len"] == 2048
        said = "".join(server.said)
        assert (
            "--api-key is taken from VLLM_API_KEY, which is vLLM's variable; ours is SUNDOG_API_KEY" in said
        )
        assert (
            "SUNDOG_MAX_NUM_SEQ is ignored: `sundog emulate` has no such option."
            " Did you mean SUNDOG_MAX_NUM_SEQS?" in said
        )
        assert "on h200, simulated" in said
    assert shown("--config", path)["api_key"] == (None, "VLLM_API_KEY")
    path.write_text(YAML)
    assert shown("--config", path)["api_key"] == (None, str(path))


def test_a_misspelt_variable_is_named_where_the_configuration_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On stderr, so that what is shown stays a file."""
    monkeypatch.setenv("SUNDOG_MAX_NUM_SEQ", "4")
    done = warm.run("sundog", "serve", "--show-config")
    assert (
        done.returncode == 0
        and "SUNDOG_MAX_NUM_SEQ is ignored: `sundog serve` has no such option." in done.stderr
    )
    assert "max_num_seqs" in tomllib.loads(done.stdout) or "# max_num_seqs =" in done.stdout


def test_every_unknown_variable_is_named_but_those_that_kubernetes_sets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A variable of the other server's option is ignored, too."""
    for name, text in {
        "SUNDOG_GPU": "h100",
        "SUNDOG_FROBNICATE": "1",
        "SUNDOG_PORT": "tcp://10.0.0.1:8000",
        "SUNDOG_ROUTER_PORT": "tcp://10.0.0.1:8000",
        "SUNDOG_ROUTER_SERVICE_HOST": "10.0.0.1",
        "SUNDOG_ROUTER_SERVICE_PORT_HTTP": "8000",
        "SUNDOG_PORT_8000_TCP_ADDR": "10.0.0.1",
    }.items():
        monkeypatch.setenv(name, text)
    said = warm.run("sundog", "serve", "--show-config").stderr.splitlines()
    assert sorted(line.split()[0] for line in said) == ["SUNDOG_FROBNICATE", "SUNDOG_GPU"]


def test_a_variable_names_the_file_and_the_command_line_overrides_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`SUNDOG_CONFIG`, also for a path with a colon; another file on the command line replaces it."""
    path, other = tmp_path / "a:b.toml", tmp_path / "other.toml"
    path.write_text("max-num-seqs = 12\n")
    other.write_text("max-num-batched-tokens = 99\n")
    monkeypatch.setenv("SUNDOG_CONFIG", str(path))
    assert shown()["max_num_seqs"] == (12, str(path))
    assert shown("--max-num-seqs", "3")["max_num_seqs"] == (3, "command line")
    found = shown("--config", other)
    assert found["max_num_seqs"] == (None, "default")
    assert found["max_num_batched_tokens"] == (99, str(other))
    monkeypatch.setenv("SUNDOG_CONFIG", str(tmp_path / "absent.toml"))
    refused(warm.run("sundog", "serve", "--show-config"), "absent.toml cannot be read")


@pytest.mark.parametrize("command", ["emulate", "serve", "replay", "bench"])
def test_two_files_are_refused_and_the_last_of_two_values_wins(command: str, tmp_path: Path) -> None:
    """As vLLM refuses two; a value that is given again overrides the first, as in every shell script."""
    files = [tmp_path / "a.toml", tmp_path / "b.toml"]
    for file in files:
        file.write_text("")
    both = ("--config", files[0], f"--config={files[1]}")
    refused(warm.run("sundog", command, *both), "--config is given twice")
    if command in ("emulate", "serve"):
        assert shown("--port", "1", "--port", "2", command=command)["port"] == (2, "command line")
