"""The documentation's experiments reproduce their pages' numbers: `make experiments`.

`make test` checks the numbers of each page and runs one experiment; the others are marked long.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_layers import ROOT

FOLDER = ROOT / "docs/experiments"
PAGES = sorted(page.stem for page in FOLDER.glob("*.md") if page.stem != "README")
SHORT = "planning_ahead"
MEASURED = "## Not checked"
"""Below it stands what was measured once, or by others: nothing makes these numbers again."""


def said(page: str) -> tuple[str, str]:
    """The output that a page shows, and what it says around it, but for what was measured."""
    text = (FOLDER / f"{page}.md").read_text(encoding="utf-8").partition(MEASURED)[0]
    blocks = re.findall(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1, "a page shows what its command prints, once"
    return blocks[0], re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", " ", text, flags=re.DOTALL)


def numbers(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)?", text))


def strangers(page: str) -> set[str]:
    """The numbers of a page's text that are neither printed nor in the script or its workloads."""
    output, prose = said(page)
    files = [FOLDER / f"{page}.py", *FOLDER.glob(f"{page}*.toml")]
    return numbers(prose) - numbers(" ".join([output, *(file.read_text() for file in files)]))


def test_every_experiment_has_a_page_a_script_and_a_picture() -> None:
    """And the first page links to each."""
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    scripts = {script.stem for script in FOLDER.glob("*.py")} - {"shown"}
    assert set(PAGES) == scripts == {picture.stem for picture in FOLDER.glob("*.svg")}
    for page in PAGES:
        assert f"({page}.md)" in index
        assert "![" in (text := (FOLDER / f"{page}.md").read_text()) and f"]({page}.svg)" in text


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_no_number_that_its_experiment_does_not(page: str) -> None:
    """Each stands in what the command prints, or in the experiment's files."""
    assert not strangers(page)


@pytest.mark.parametrize(
    "page",
    [
        name
        if name == SHORT
        else pytest.param(name, marks=pytest.mark.long(rare=True, reason="sweeps for minutes"))
        for name in PAGES
    ],
)
def test_an_experiment_gives_what_its_page_shows(page: str, tmp_path: Path) -> None:
    """The lines and the picture, to the byte."""
    command = [sys.executable, f"docs/experiments/{page}.py", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert done.stdout == said(page)[0]
    assert (tmp_path / f"{page}.svg").read_bytes() == (FOLDER / f"{page}.svg").read_bytes()


def test_a_number_that_nobody_printed_would_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the text of a page, but neither in its code nor in what was not checked."""
    for name in (f"{SHORT}.py", f"{SHORT}.toml"):
        (tmp_path / name).write_text((FOLDER / name).read_text())
    page = (FOLDER / f"{SHORT}.md").read_text().partition(MEASURED)[0]
    page += f"It takes 17,171 ms, `18,181` in code.\n\n{MEASURED}\n\n19,191\n"
    (tmp_path / f"{SHORT}.md").write_text(page)
    monkeypatch.setattr("tests.test_experiments.FOLDER", tmp_path)
    assert strangers(SHORT) == {"17,171"}
