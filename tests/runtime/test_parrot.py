"""Whole and streamed answers of a real engine are equal, through all three APIs, for scripted texts.

Random scripts, thousands of them, are said in `tests/actors/api/test_parrot.py` without an engine.
"""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

pytest.importorskip("torch", reason="the engine extra is not installed")

from tests.actors.api.test_parrot import APIS, LOOK, RUN, Script, events
from tests.live import START_S, Live, live
from tests.runtime.parrot import build_parrot

SCRIPTS = (
    Script("The fox, é, 猫 and 🦊.", 64),
    Script("<think>\nWhich?\n</think>\n\nThis one.", 64),
    Script(f"<think>Two.</think>I look.\n{LOOK}\n{RUN}", 200),
    Script(f"<think>Two.</think>I look.\n{LOOK}\n{RUN}", 104),  # the last tokens are `Ro`
    Script(f"</think>{LOOK}\n{RUN}", 200, ("Rome",)),
    Script(f"</think>{LOOK}\n{RUN}", 200, ("Rome",), parallel=False),
)


OPTIONS = ("--dtype", "float32", "--served-model-name", "parrot")


@pytest.fixture(scope="module")
def parrot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Live, list[int]]]:
    folder = tmp_path_factory.mktemp("parrot")
    lengths = build_parrot(folder, sorted({script.text for script in SCRIPTS}))
    formats = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
    with live("sundog", "serve", str(folder), "--port", "0", *OPTIONS, *formats) as server:
        yield server, lengths
        assert server.stop() == 0


def asked(parrot: tuple[Live, list[int]], script: Script, path: str) -> tuple[Any, Any]:
    """The answer whole and streamed."""
    server, lengths = parrot
    length = lengths[sorted({each.text for each in SCRIPTS}).index(script.text)]
    body_of, whole_of, streamed_of = APIS[path]
    body = body_of(script, str(length)) | {"temperature": 0}
    whole = httpx.post(server.url + path, json=body, timeout=START_S)
    options = {"stream_options": {"include_usage": True}} if "chat" in path else {}
    streamed = httpx.post(server.url + path, json=body | {"stream": True} | options, timeout=START_S)
    assert whole.status_code == streamed.status_code == 200, whole.text
    return whole_of(whole.json()), streamed_of(events(streamed.text))


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("script", SCRIPTS, ids=range(len(SCRIPTS)))
def test_a_real_engine_says_the_same_whole_and_streamed(
    parrot: tuple[Live, list[int]], script: Script, path: str
) -> None:
    whole, streamed = asked(parrot, script, path)
    for cached in ("prompt_tokens_details", "input_tokens_details"):
        for each in (whole, streamed):
            if isinstance(each[-1], dict):
                each[-1].pop(cached, None)
    assert whole == streamed


def test_a_real_engine_says_its_scripts(parrot: tuple[Live, list[int]]) -> None:
    """Reasoning, content, calls and how each ends, as written down here."""
    said = [asked(parrot, script, "/v1/chat/completions")[0][:2] for script in SCRIPTS]
    look, run = ("look", '{"a": "Paris"}'), ("run_it", '{"b": "Rome"}')
    assert said[1:] == [
        (("\nWhich?\n", "\n\nThis one.", []), "stop"),
        (("Two.", "I look.\n", [look, run]), "tool_calls"),
        (("Two.", "I look.\n", [look, ("run_it", '{"b": "Ro')]), "length"),
        (("", "", [look, ("run_it", '{"b": "')]), "stop"),
        (("", "", [look]), "tool_calls"),
    ]
