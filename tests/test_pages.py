"""What pages of docs/ show of a command's output is what the command prints, and draws.

A block that begins with ```text is the output of the last `sundog` command above it; a line … in it stands
for lines that are left out. docs/experiments/ has tests of its own.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.test_layers import ROOT

QUICK = ("replay", "trace", "capacity")
"""Commands that pages show with output, and that run in seconds."""
PICTURE = "--figure"
LEFT_OUT = "…"
SLOW_S = 900


class Shown(NamedTuple):
    """A command of a page, and the output that stands below it; None if only its picture does."""

    page: str
    words: tuple[str, ...]
    output: str | None


def shown_in(page: str, text: str) -> list[Shown]:
    """Commands of a page with a sample of their output, or with a picture in docs/."""
    found = list[Shown]()
    last: tuple[str, ...] | None = None
    command = r"^    sundog (?:[^\n]*\\\n)*[^\n]*$"
    for match in re.finditer(rf"{command}|^```text\n(?P<output>.*?)^```", text, re.MULTILINE | re.DOTALL):
        output = match["output"]
        if output is None:
            last = tuple(shlex.split(match[0].replace("\\\n", " "), comments=True)[1:])
            if PICTURE in last and last[last.index(PICTURE) + 1].startswith("docs/"):
                found.append(Shown(page, last, None))
            continue
        assert last is not None, f"{page} has output and no command above it"
        if found and found[-1].words == last:
            assert found.pop().output is None, f"{page} shows the output of a command twice"
        found.append(Shown(page, last, output))
    return found


def agrees(sample: str, printed: str) -> bool:
    """Whether a sample is what was printed, but for lines left out and spaces at the ends of lines."""
    lines = [line.rstrip() for line in sample.splitlines()]
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == LEFT_OUT else re.escape(line) + r"\n" for line in lines
    )
    text = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    return re.fullmatch(pattern, text) is not None


def examples() -> list[Shown]:
    pages = sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "experiments")
    named = [(str(page.relative_to(ROOT / "docs")), page.read_text(encoding="utf-8")) for page in pages]
    return [each for page, text in named for each in shown_in(page, text)]


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param(
            each,
            id=f"{each.page}:{each.words[0]}",
            marks=()
            if each.words[0] in QUICK
            else pytest.mark.long(rare=True, reason="searches or sweeps for minutes"),
        )
        for each in examples()
    ],
)
def test_a_command_prints_and_draws_what_its_page_shows(shown: Shown, tmp_path: Path) -> None:
    """The lines and the picture, to the byte; of fleets that are tried, two at a time."""
    words = list(shown.words)
    if PICTURE in words:
        at = words.index(PICTURE) + 1
        picture, words[at] = ROOT / words[at], str(tmp_path / Path(words[at]).name)
    if words[0] == "plan":
        words += ["--jobs", "2"]
    command = [sys.executable, "-m", "sundog", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SLOW_S)
    assert done.returncode == 0, done.stderr
    assert shown.output is None or agrees(shown.output, done.stdout), done.stdout
    if PICTURE in words:
        assert Path(words[at]).read_bytes() == picture.read_bytes()


PAGE = """
    sundog replay TRACE --gpu h100 \\
        --limit 5    # a comment

```text
 a  1
…
 d  4
```

    sundog sweep TRACE --figure docs/a.svg
    sundog sweep TRACE --figure here.svg
"""


def test_samples_and_pictures_are_found() -> None:
    """Each with its command; a picture that is the reader's own is none of the page."""
    replayed, swept = shown_in("a.md", PAGE)
    assert replayed.words == ("replay", "TRACE", "--gpu", "h100", "--limit", "5")
    assert replayed.output == " a  1\n…\n d  4\n"
    assert swept.words[-1] == "docs/a.svg" and swept.output is None
    with pytest.raises(AssertionError, match=r"a\.md has output and no command above it"):
        shown_in("a.md", "```text\n1\n```\n")


@pytest.mark.parametrize(
    ("printed", "does"),
    [
        (" a  1 \n b  2\n c  3\n d  4\n", True),
        (" a  1\n d  4\n", True),
        (" a  1\n b  2\n d  5\n", False),
        ("a  1\n d  4\n", False),
        (" a  1\n d  4\n e  5\n", False),
        (" a  1\n d  4\n\n", False),
    ],
)
def test_a_sample_agrees_but_for_lines_left_out(printed: str, does: bool) -> None:
    assert agrees(" a  1\n…\n d  4\n", printed) == does


def test_every_block_of_output_is_of_a_command() -> None:
    """The pages that are known to show any: none is forgotten by a change of form."""
    assert {each.page for each in examples()} >= {"planning.md", "load-curve.md"}
