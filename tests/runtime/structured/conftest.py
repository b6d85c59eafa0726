"""A server whose model has tokens that begin and end reasoning."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live import Live, live

FLAGS = ("--port", "0", "--dtype", "float32", "--reasoning-parser", "deepseek_r1")
CHUNKED = ("--max-num-batched-tokens", "8", "--tool-call-parser", "hermes", "--enable-auto-tool-choice")


@pytest.fixture(scope="package")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """The embedded model, two of whose special tokens are the marks of reasoning, and text as Qwen's are."""
    pytest.importorskip("torch", reason="the engine extra is not installed")
    from sundog.runtime.serve import EMBEDDED_MODEL

    folder: Path = tmp_path_factory.mktemp("thinker") / "model"
    shutil.copytree(EMBEDDED_MODEL, folder)
    text = (folder / "tokenizer.json").read_text()
    for old, new in (("<|pad|>", "<think>"), ("<|system|>", "</think>")):
        text = text.replace(f'"{old}"', f'"{new}"')
    tokenizer = json.loads(text)
    for token in tokenizer["added_tokens"]:
        token["special"] = "think" not in token["content"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with live("sundog", "serve", str(folder), *FLAGS, *CHUNKED) as server:
        yield server
