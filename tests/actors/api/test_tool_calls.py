"""Tool calls and reasoning parsed from text, independent of how the text is split into deltas."""

import itertools
import random

import pytest

from sundog.actors.api.answers.reasoning import ThoughtParser
from sundog.actors.api.answers.tool_calls import FORMATS, LISTED, CallFormat, CallParser, ParsedText

HERMES, LLAMA, MISTRAL = FORMATS["hermes"], FORMATS["llama3_json"], FORMATS["mistral"]
Calls = list[tuple[str, str]]


def pieces(text: str, seed: int) -> list[str]:
    """The text whole, or cut at random."""
    rng, cut, at = random.Random(seed), [], 0
    while at < len(text):
        size = len(text) if seed == 0 else rng.randint(1, 1 + seed % 7)
        cut.append(text[at : at + size])
        at += size
    return cut


@pytest.mark.parametrize(
    ("form", "text", "content", "calls"),
    [
        (
            HERMES,
            'Let me see.<tool_call>\n{"name": "f", "arguments": {"a": "x }\\" y", "b": [1, {"c": 2}]}}\n'
            '</tool_call>\n<tool_call>{"arguments": { }, "name": "g"}</tool_call>',
            "Let me see.",
            [("f", '{"a": "x }\\" y", "b": [1, {"c": 2}]}'), ("g", "{ }")],
        ),
        (HERMES, "plain <tool text < and <tool_cal", "plain <tool text < and <tool_cal", []),
        (
            HERMES,
            'a <tool_call>{"x": {"name": "f"}}</tool_call> b',
            'a <tool_call>{"x": {"name": "f"}}</tool_call> b',
            [],
        ),
        (HERMES, '<tool_call>{"name": "f", "arguments": {"q": 1', "", [("f", '{"q": 1')]),
        (HERMES, '<tool_call>{"arguments": {"q": 1', '<tool_call>{"arguments": {"q": 1', []),
        (
            HERMES,
            '<tool_call>{"name": "f", "arguments": {"a": 1}\n</tool_call>\n'
            '<tool_call>{"name": "g", "arguments": {"b": {"c": 2</tool_call>'
            '<tool_call>{"name": "h"</tool_call> so',
            " so",
            [("f", '{"a": 1}'), ("g", '{"b": {"c": 2'), ("h", "{}")],
        ),
        (HERMES, '<tool_call>{"nam</tool_call>', '<tool_call>{"nam</tool_call>', []),
        (HERMES, '<tool_call>{"x": 1</tool_call> b', '<tool_call>{"x": 1</tool_call> b', []),
        (HERMES, "<tool_call>not json</tool_call>", "<tool_call>not json</tool_call>", []),
        (HERMES, "so <tool_call>", "so <tool_call>", []),
        (HERMES, "\n\n", "\n\n", []),
        (HERMES, '\n\n<tool_call>\n{"name": "f"}\n</tool_call>\n', "", [("f", "{}")]),
        (
            HERMES,
            'A \n<tool_call>{"name": "f", "arguments": "a  b"}</tool_call>\nand so on ',
            "A \n\nand so on ",
            [("f", '"a  b"')],
        ),
        (HERMES, '<tool_call>{"name": "f", "arguments": {}}\n</tool_c', "", [("f", "{}")]),
        (
            HERMES,
            '<tool_call>{"name": "f", "arguments": {}}</tool_call>\n<tool_call>bad</tool_call>',
            "\n<tool_call>bad</tool_call>",
            [("f", "{}")],
        ),
        (
            HERMES,
            '<tool_call>{"name": "f", "arguments": "{\\"q\\": 1}"}</tool_call>',
            "",
            [("f", '{"q": 1}')],
        ),
        (HERMES, '<tool_call>{"arguments": "{\\"q\\": 1}" , "name": "f"}', "", [("f", '{"q": 1}')]),
        (HERMES, '<tool_call>{"name": "f", "arguments": "[1]"}</tool_call>', "", [("f", '"[1]"')]),
        (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"q\\": NaN}"}', "", [("f", '"{\\"q\\": NaN}"')]),
        (LLAMA, "<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
        (MISTRAL, '[TOOL_CALLS]f[ARGS]{"x": "}\\""}', "", [("f", '{"x": "}\\""}')]),
        (MISTRAL, 'Hi [TOOL_CALLS]f.a-b{"x": 1}', "Hi ", [("f.a-b", '{"x": 1}')]),
        (
            MISTRAL,
            '[TOOL_CALLS]f[CALL_ID]ab12[ARGS]{"x": [1]}[TOOL_CALLS]g[ARGS]{}',
            "",
            [("f", '{"x": [1]}'), ("g", "{}")],
        ),
        (MISTRAL, '[TOOL_CALLS]f[ARGS]{"x": ', "", [("f", '{"x": ')]),
        (MISTRAL, "[TOOL_CALLS]no json", "[TOOL_CALLS]no json", []),
        (MISTRAL, "[TOOL_CALLS]f", "[TOOL_CALLS]f", []),
        (
            LLAMA,
            '{"name": "f", "parameters": {"q": "é"} }; {"name": "g", "parameters": {}}',
            "",
            [("f", '{"q": "é"}'), ("g", "{}")],
        ),
        (LLAMA, '<|python_tag|>{"name": "f", "parameters": {"q": 1}}', "", [("f", '{"q": 1}')]),
        (LLAMA, '{"answer": 42}', '{"answer": 42}', []),
        (LLAMA, 'hello {"name": "f", "parameters": {}}', 'hello {"name": "f", "parameters": {}}', []),
        (
            MISTRAL,
            '[TOOL_CALLS] [{"name": "f", "arguments": {"q": 1}}, {"name": "g", "arguments": [2]}]',
            "",
            [("f", '{"q": 1}'), ("g", "[2]")],
        ),
        (
            LISTED,
            '[{"name":"f","parameters":{"z":" { "}},\n {"name":"g","parameters":{"y":null}}]',
            "",
            [("f", '{"z":" { "}'), ("g", '{"y":null}')],
        ),
    ],
)
def test_calls_are_the_same_however_the_text_is_cut(
    form: CallFormat, text: str, content: str, calls: Calls
) -> None:
    """A call's name comes once and first; nothing of a mark is content."""
    for seed in range(60):
        parser, said, found = CallParser(form), "", dict[int, list[str]]()
        for piece in pieces(text, seed):
            new = parser.feed(piece)
            said += new.content
            for part in new.parts:
                assert (part.name is not None) == (part.index not in found)
                call = found.setdefault(part.index, [part.name or "", ""])
                call[1] += part.arguments
        said += parser.flush().content
        assert (said, [tuple(call) for call in found.values()]) == (content, calls)
        assert parser.has_called == bool(calls)


@pytest.mark.parametrize(
    ("text", "order", "is_cut"),
    [
        ('<tool_call>{"name": "f"}</tool_call>and so', [0, "and so"], False),
        (
            'so <tool_call>{"name": "f"}</tool_call> and <tool_call>{"name": "g"}',
            ["so ", 0, " and ", 1],
            False,
        ),
        ('so<tool_call>{"name": "f", "arguments": {"q": "Par', ["so", 0], True),
    ],
)
def test_texts_and_calls_keep_their_order_however_the_text_is_cut(
    text: str, order: list[str | int], is_cut: bool
) -> None:
    for seed in range(60):
        parser, found = CallParser(HERMES), ParsedText()
        for piece in pieces(text, seed):
            for each in parser.feed(piece).said:
                found.add(each)
        assert (parser.open_call is not None) == is_cut
        for each in parser.flush().said:
            found.add(each)
        said = [each if isinstance(each, str) else each.index for each in found.said]
        assert [key for key, _ in itertools.groupby(said)] == order


@pytest.mark.parametrize(
    ("starts_thinking", "text", "reasoning", "content"),
    [
        (False, "\n<think>why</think>so", "why", "so"),
        (False, "no <think> here", "", "no <think> here"),
        (False, "<think>cut off", "cut off", ""),
        (True, "why not</think> so", "why not", " so"),
        (True, "<think>a </thin b</think>", "a </thin b", ""),
        (True, "only </th", "only </th", ""),
        (True, "<think><think>a</think>b</think>", "a", "b</think>"),
        (True, "a<tool_call>{}", "a<tool_call>{}", ""),
    ],
)
def test_reasoning_is_the_same_however_the_text_is_cut(
    starts_thinking: bool, text: str, reasoning: str, content: str
) -> None:
    for seed in range(60):
        parser, found, cut = ThoughtParser(starts_thinking), ["", ""], pieces(text, seed)
        for index, piece in enumerate(cut):
            thought, said = parser.feed(piece, index == len(cut) - 1)
            found[0] += thought
            found[1] += said
        assert found == [reasoning, content]


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("a</think>b</think>c", "a", "bc"),
        ("<think>a<think>b</think></th", "ab", "</th"),
        ("a\n<tool_call>{}</tool_call>", "a\n", "<tool_call>{}</tool_call>"),
        ("a <tool_ca", "a <tool_ca", ""),
        ("", "", ""),
    ],
)
def test_qwens_reasoning_ends_at_a_call_however_the_text_is_cut(
    text: str, reasoning: str, content: str
) -> None:
    """As in vLLM: a call that was thought of is a call."""
    for seed in range(60):
        parser, found, cut = ThoughtParser(True, ends_at_calls=True), ["", ""], pieces(text, seed)
        for index, piece in enumerate(cut):
            thought, said = parser.feed(piece, index == len(cut) - 1)
            found[0] += thought
            found[1] += said
        assert found == [reasoning, content]
