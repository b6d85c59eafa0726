"""Chat templates: for tools, in files of their own, and given by option."""

import json
from pathlib import Path

import pytest

from sundog.actors.messages import ChatMessage, Reading
from sundog.runtime.checkpoint.facts import LoadError
from sundog.runtime.serve import EMBEDDED_MODEL
from sundog.runtime.text.tokenizer import Tokenizer

HI = [ChatMessage("user", "hi")]
TOOLS = Reading(template_arguments={"tools": [{"function": {"name": "f"}}]})


def folder(tmp_path: Path, own: object, **files: str) -> Path:
    """The embedded tokenizer with templates of its own; files by their stems."""
    (tmp_path / "tokenizer.json").write_bytes((EMBEDDED_MODEL / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": own}))
    for name, source in files.items():
        file = tmp_path / ("additional_chat_templates" if name != "chat_template" else "") / f"{name}.jinja"
        file.parent.mkdir(exist_ok=True)
        file.write_text(source)
    return tmp_path


NAMED = [
    {"name": "default", "template": "plain"},
    {"name": "tool_use", "template": "{{ tools[0].function.name }}"},
]


@pytest.mark.parametrize(
    ("given", "files", "plain", "with_tools"),
    [
        ("one", {}, "one", "one"),
        (NAMED, {}, "plain", "f"),
        (NAMED, {"chat_template": "file"}, "file", "f"),
        ("one", {"tool_use": "for tools"}, "one", "for tools"),
        (NAMED, {"tool_use": "for tools", "rag": "x"}, "plain", "for tools"),
    ],
)
def test_tools_take_their_own_template_where_there_is_one(
    tmp_path: Path, given: object, files: dict[str, str], plain: str, with_tools: str
) -> None:
    """As transformers and vLLM choose; a file goes before the configuration."""
    tokenizer = Tokenizer(folder(tmp_path, given, **files))
    assert tokenizer.render_chat(HI) == plain and tokenizer.render_chat(HI, TOOLS) == with_tools


def test_a_template_that_is_given_takes_the_place_of_all(tmp_path: Path) -> None:
    own = folder(tmp_path, NAMED)
    file = tmp_path / "mine.jinja"
    file.write_text("mine")
    tokenizer = Tokenizer(own, chat_template=file)
    assert tokenizer.render_chat(HI, TOOLS) == "mine"
    with pytest.raises(LoadError, match="cannot read the chat template"):
        Tokenizer(own, chat_template=tmp_path / "none.jinja")


@pytest.mark.parametrize(
    ("source", "parser"),
    [
        ("<tool_call>{{ x }}</tool_call>", "hermes"),
        ("<tool_call>\n<function={{ x }}>", None),
        ("<|python_tag|>{{ x }}", "llama3_json"),
        ("[TOOL_CALLS]{{ x }}", "mistral"),
        ("{{ messages[0].content }}", None),
    ],
)
def test_the_template_tells_how_calls_are_written(tmp_path: Path, source: str, parser: str | None) -> None:
    assert Tokenizer(folder(tmp_path, source)).tool_call_parser == parser
