"""Coding agents from npm, started as people start them: each gets a task, calls two tools, and ends.

They talk to an emulated server whose answers are lines of a file, and two of them to a real engine, whose
model says the same token by token; no option of the server is for them.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live import Live, live

pytestmark = pytest.mark.skipif(
    "SUNDOG_PYTHON" not in os.environ, reason="agents come from npm: make test-clients"
)

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".venv-clients" / "agents"
AGENTS = {
    "codex": "@openai/codex@0.171.0",
    "claude": "@anthropic-ai/claude-code@2.1.197",
    "qwen": "@qwen-code/qwen-code@0.15.10",
    "opencode": "opencode-ai@1.18.33",
}
MOST_S = 180
MODEL = "llama-3.1-8b"
ASKS = "What is written in the file of this folder?"
FILE, WRITTEN = "a-file-of-ours.txt", "seven and ninety"
END = "It is a number in words."


def call(agent: str, command: str) -> str:
    """The text with which a model asks the agent to run a command."""
    name, arguments = {
        "codex": ("exec_command", {"cmd": command}),
        "claude": ("Bash", {"command": command, "description": "Look"}),
        "qwen": ("run_shell_command", {"command": command, "is_background": False, "description": "Look"}),
        "opencode": ("bash", {"command": command, "description": "Look"}),
    }[agent]
    asked = {"name": name, "arguments": arguments}
    return f"I look.\n<tool_call>\n{json.dumps(asked)}\n</tool_call>"


def answers_to(agent: str) -> list[tuple[str, str]]:
    """What is said where a word stands in the messages, the last that came first."""
    return [(WRITTEN, END), (FILE, call(agent, f"cat {FILE}")), (ASKS, call(agent, "ls"))]


@pytest.fixture(scope="session")
def agents() -> Path:
    """The folder of the agents' commands; npm fetches them once."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm, with which agents are installed")
    FOLDER.mkdir(parents=True, exist_ok=True)
    bins = FOLDER / "node_modules" / ".bin"
    if not all((bins / name).exists() for name in AGENTS):
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(FOLDER)]
        done = subprocess.run([*command, *AGENTS.values()], capture_output=True, text=True, timeout=600)
        if done.returncode:
            pytest.skip(f"npm could not fetch the agents: {done.stderr.strip()[-200:]}")
    return bins


@pytest.fixture(params=AGENTS)
def agent(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def emulated(agent: str, tmp_path: Path) -> Iterator[Live]:
    """A server that answers the question and what the first call gives with calls, and then with the end."""
    rows = [{"last": word, "answer": answer} for word, answer in answers_to(agent)] + [{"answer": "Yes."}]
    answers = tmp_path / "answers.jsonl"
    answers.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["sundog", "emulate", MODEL, "--gpu", "h100", "--max-model-len", "131072"]
    with live(*command, "--answers", str(answers), "--port", "0") as server:
        yield server
        assert server.stop() == 0


@pytest.fixture
def real(agent: str, tmp_path: Path) -> Iterator[Live]:
    """A real engine whose model says the same, token by token, and whose template looks for the words."""
    if agent not in ("codex", "claude"):
        pytest.skip("two agents are asked of a real engine")
    folder = tmp_path / "parrot"
    command = [os.environ["SUNDOG_PYTHON"], "-m", "tests.runtime.parrot", str(folder)]
    subprocess.run([*command, json.dumps([answers_to(agent), "Yes."])], cwd=ROOT, check=True, timeout=MOST_S)
    options = ("--served-model-name", MODEL, "--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    with live("sundog", "serve", str(folder), "--port", "0", "--dtype", "float32", *options) as server:
        yield server
        assert server.stop() == 0


def test_an_agent_calls_tools_and_ends(agent: str, agents: Path, emulated: Live, tmp_path: Path) -> None:
    """By the lines of `docs/clients.md`."""
    play(agent, agents, emulated.url, tmp_path)


def test_an_agent_does_the_same_at_a_real_engine(
    agent: str, agents: Path, real: Live, tmp_path: Path
) -> None:
    play(agent, agents, real.url, tmp_path)


def play(agent: str, agents: Path, url: str, tmp_path: Path) -> None:
    """Start the agent as a user does, in a folder with one file; it must end with the end."""
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    (work / FILE).write_text(f"{WRITTEN}\n")
    (home / ".codex").mkdir(parents=True)
    model = MODEL
    (home / ".codex" / "config.toml").write_text(
        f'model = "{model}"\nmodel_provider = "sundog"\n[model_providers.sundog]\nname = "Sundog"\n'
        f'base_url = "{url}/v1"\nwire_api = "responses"\n'
    )
    env = {key: value for key, value in os.environ.items() if not key.startswith(("ANTHROPIC", "OPENAI"))}
    env |= {"PWD": str(work)}  # where opencode looks for its configuration
    env |= {"HOME": str(home), "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none"}
    env |= {"ANTHROPIC_MODEL": model, "ANTHROPIC_SMALL_FAST_MODEL": model, "IS_SANDBOX": "1"}
    env |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    env |= {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": model}
    own = {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": f"{url}/v1", "apiKey": "none"}}
    limit = {"context": 131072, "output": 4096}
    named = f"sundog/{model}"
    provider = own | {"models": {model: {"limit": limit}}}
    (work / "opencode.json").write_text(
        json.dumps({"model": named, "small_model": named, "provider": {"sundog": provider}})
    )
    command = {
        "codex": ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", ASKS],
        "claude": ["-p", ASKS, "--dangerously-skip-permissions", "--output-format", "text"],
        "qwen": ["--auth-type", "openai", "--yolo", "-p", ASKS],
        "opencode": ["run", ASKS],
    }[agent]
    done = subprocess.run(
        [agents / agent, *command],
        cwd=work,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=MOST_S,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert done.stdout.strip().endswith(END), done.stdout[-2000:]
