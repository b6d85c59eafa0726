"""The documentation site: links, and the commands of its first pages."""

import contextlib
import gzip
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import click
import httpx
import pytest

from sundog.runtime.serve import EMBEDDED_MODEL
from tests import warm
from tests.live import live
from tests.test_layers import ROOT
from tools.site.__main__ import STARTS, commands, listed, names, with_links

TRACE = "traces/chat-poisson-2rps-5min.jsonl.gz"
KNOWN = {"policies.md", "start/plan.md", "notebooks/plan.ipynb", "pictures/fleets.svg"}


@pytest.mark.parametrize(
    ("page", "text", "made"),
    [
        ("index.md", "see `docs/policies.md`.", "see [`docs/policies.md`](policies.md)."),
        ("start/plan.md", "see `docs/policies.md`.", "see [`docs/policies.md`](../policies.md)."),
        ("index.md", "see `docs/nothing.md`.", "see `docs/nothing.md`."),
        ("index.md", "```\ncat `docs/policies.md`\n```\n", "```\ncat `docs/policies.md`\n```\n"),
        ("start/plan.md", "[it](../policies.md#a)", "[it](../policies.md#a)"),
        ("start/plan.md", "[it](../../traces/README.md#a)", "[it]"),
        ("start/plan.md", "[it](https://example.org) [here](#a)", "[it](https://example.org) [here](#a)"),
    ],
)
def test_names_of_pages_become_links_and_none_leads_out_of_the_site(page: str, text: str, made: str) -> None:
    assert with_links(text, page, KNOWN) == made


def test_a_start_page_lists_what_it_names_in_order() -> None:
    """Once each, without the references, which stand beside the start pages."""
    text = "[a](../policies.md) [b](../notebooks/plan.ipynb) [a](../policies.md) [c](../reference/python.md)"
    assert listed(text, "start/plan.md").split()[2:-1] == ["/policies", "/notebooks/plan"]


def test_the_references_have_every_command_and_every_public_name() -> None:
    import sundog
    from sundog.cli import cli

    assert re.findall(r"^## sundog (\S+)$", commands(), re.M) == cli.list_commands(click.Context(cli))
    assert re.findall(r"sundog\.(\w+)$", names(), re.M) == list(sundog.__all__)
    assert "--max-num-seqs" in commands()


@pytest.mark.long(reason="runs the commands of a page, half a minute")
@pytest.mark.wall_clock
@pytest.mark.skipif(sys.platform == "win32", reason="the commands are bash's")
@pytest.mark.parametrize("page", STARTS)
def test_the_commands_of_a_first_page_run(page: str, tmp_path: Path) -> None:
    """One after the other, in a folder with nothing but what a clone has; a server by a port of its own."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    if page == "start/contribute":
        assert not blocks  # its commands are those of CONTRIBUTING.md, and run this very test
        return
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/bin").symlink_to(Path(sys.executable).parent)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    script = "set -euo pipefail -o monitor\n" + "".join(blocks).replace("8000", port)
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=os.environ, text=True, capture_output=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-4000:]
    made = {
        "start/operate": ["measured"],
        "start/plan": ["one"],
        "start/research": ["pages.html", "shortest"],
    }
    assert all((tmp_path / name).exists() for name in made[page]), os.listdir(tmp_path)


ELSEWHERE = "tests/test_pages.py compares its output or picture"
FIGURES = "tests/test_page_figures.py compares its figures"
NEEDS_RAY = "Ray; tests/runtime/ray have it"
NEEDS_VLLM = "vLLM of that version, whose scheduler is compared"
NEEDS_NETWORK = "the network"
NEEDS_SERVER = "a server that the block before begins; tests/runtime/test_hot_adapters.py sends it"
NOT_RUN = {
    "deploying.md": {
        "sundog emulate --config": "server.yaml, of which tests/sundog/test_server_config.py has one",
        "SUNDOG_MAX_NUM_SEQS=64": "server.toml, of which tests/sundog/test_server_config.py has one",
    },
    "load-curve.md": {"sundog sweep": ELSEWHERE},
    "metrics.md": {"pip install": NEEDS_NETWORK},
    "papers.md": {"sundog replay": FIGURES, "sundog sweep": FIGURES},
    "passport.md": {
        "sundog sweep": FIGURES,
        "PYTHONPATH=.:SUNDOG vllm": NEEDS_VLLM,
        "curl": "vLLM, which the block before begins",
    },
    "planning.md": {"sundog plan": ELSEWHERE, "sundog capacity": ELSEWHERE},
    "public-records.md": {"python -m": NEEDS_NETWORK, "sundog validate": "what is fetched from the network"},
    "ray.md": {"pip install": NEEDS_NETWORK, "sundog": NEEDS_RAY},
    "served.md": {
        "sundog serve Qwen/Qwen3-0.6B": "the hub; tests/sundog/test_hub.py serves from a mirror",
        "sundog serve model-Q8_0.gguf": "a file; tests/sundog/test_hub.py serves one",
        "sundog serve DIR --enable-lora": "adapters; tests/runtime/test_serve_lora.py serves some",
        "curl": NEEDS_SERVER,
    },
    "vllm.md": {"python -m tests.oracle": NEEDS_VLLM},
    "workloads.md": {"sundog replay day.jsonl.gz": "345,456 requests, which take minutes"},
}
"""Commands of pages that run in no test here, by how they begin, and what they need."""
HEADS = r"(?:[A-Z_]+=\S+ )?(?:sundog|python|pip|curl|make|git|hf|docker|kubectl|helm|vllm) "
SERVERS = ("serve", "emulate")
FEW = "150"
"""Requests of a trace that stands for the reader's own."""


def blocks_of(page: str) -> list[str]:
    """The commands of a page's indented blocks, each on one line and without its remark."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL).replace("\\\n", " ")
    return [re.sub(r"\s+# .*", "", line) for line in re.findall(rf"^    ({HEADS}.*)$", text, re.MULTILINE)]


def reason(page: str, command: str) -> str | None:
    """What a command needs that is not here; None if it runs."""
    known = NOT_RUN.get(page, {})
    return next((why for start, why in known.items() if command.startswith(start)), None)


def pages() -> list[str]:
    return sorted(page.name for page in (ROOT / "docs").glob("*.md") if blocks_of(page.name))


def run_of(page: str) -> list[str]:
    return [each for each in blocks_of(page) if reason(page, each) is None]


def test_every_reason_is_of_a_command() -> None:
    """And pages of commands are found at all."""
    assert len(pages()) > 15 and sum(len(run_of(page)) for page in pages()) > 25
    for page, known in NOT_RUN.items():
        for start in known:
            assert any(command.startswith(start) for command in blocks_of(page)), (page, start)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a clone has, and what pages call the reader's own."""
    folder = tmp_path_factory.mktemp("desk")
    for name in ("docs", "traces", "tests"):
        (folder / name).symlink_to(ROOT / name)
    rows = gzip.decompress((ROOT / TRACE).read_bytes()).splitlines(keepends=True)
    (folder / "my-trace.jsonl").write_bytes(b"".join(rows[: int(FEW)]))
    fleets = (ROOT / "docs/fleets.md").read_text(encoding="utf-8")
    files = re.findall(r"^```toml\n(.*?)^```", fleets, re.MULTILINE | re.DOTALL)
    for name, text in zip(("crash.toml", "dead.toml"), files, strict=True):
        (folder / name).write_text(text)
    done = warm.run("sundog", "replay", "my-trace.jsonl", "--out", "RUN", folder=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.long(reason="runs the commands of all pages, minutes", moderate=True)
@pytest.mark.wall_clock
@pytest.mark.parametrize("page", [page for page in pages() if run_of(page)])
def test_the_commands_of_a_page_run(page: str, desk: Path) -> None:
    """One after the other; servers until they answer, with the embedded model for the reader's own."""
    own = {"TRACE": "my-trace.jsonl"} | dict.fromkeys(
        ("MODEL", "FOLDER", "DRAFT_FOLDER"), str(EMBEDDED_MODEL)
    )
    for command in run_of(page):
        for placeholder, thing in own.items():
            command = re.sub(rf"\b{placeholder}\b", thing, command)
        program, *words = shlex.split(command)
        assert program == "sundog", command
        if words[0] in SERVERS:
            with contextlib.chdir(desk), live("sundog", *words, "--port", "0") as server:
                assert httpx.get(f"{server.url}/health").status_code == 200, command
            continue
        is_workload = words[1].endswith(".toml")
        if words[0] in ("replay", "sweep") and "my-trace.jsonl" not in words and not is_workload:
            words += ["--limit", FEW]
        done = warm.run("sundog", *words, folder=desk)
        assert done.returncode == 0, (command, done.stderr)
