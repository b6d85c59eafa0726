"""Models through the command line: what is priced, what is refused, what is said."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TRACE = "traces/chat-poisson-2rps-5min.jsonl.gz"


def replay(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Twenty requests."""
    return subprocess.run(
        [sys.executable, "-m", "sundog", "replay", TRACE, "--limit", "20", "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )


def config(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(f"sim/hardware/models/{name}.json").read_text())
    return found


def test_deepseek_is_no_dense_model_that_fits_on_one_gpu(tmp_path: Path) -> None:
    """674 GB of weights: refused on one H100 with the number of GPUs it takes, played on eight H200."""
    (tmp_path / "config.json").write_text(json.dumps(config("deepseek-v3")))
    done = replay("--model", str(tmp_path), "--gpu", "h100")
    assert done.returncode == 2 and done.stdout == ""
    assert "67" in done.stderr and "raise --tensor-parallel-size to 16" in done.stderr
    done = replay("--model", str(tmp_path), "--gpu", "h200", "-tp", "8")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["num_finished"] == 20


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"model_type": "mamba2"}', "model_type is 'mamba2', which the cost model does not know"),
        ("[]", "a config.json holds one object, not list"),
        ('{"text_config": {"text_config": {}}}', "text_config holds another text_config"),
    ],
)
def test_a_config_that_is_not_known_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    """Exit code 2, the reason, no traceback."""
    (tmp_path / "config.json").write_text(text)
    done = replay("--model", str(tmp_path))
    assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_folder_without_a_config_is_one_line(tmp_path: Path) -> None:
    """The path that was tried is in it."""
    done = replay("--model", str(tmp_path))
    assert done.returncode == 2 and "cannot read the model's config" in done.stderr


def test_heads_that_cannot_be_split_are_refused() -> None:
    """Four key heads go to 1, 2, 4 and 8 ranks, not to 16 of 28 query heads."""
    assert "must divide the 28 attention heads" in replay("--model", "qwen2.5-7b", "-tp", "16").stderr
    assert replay("--model", "qwen3-30b-a3b", "-tp", "8").returncode == 0
