"""The notebooks of the documentation run unchanged."""

import re
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="the notebook extra is not installed")

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def texts(output: Any) -> str:
    """The text of an output, with six digits of each number: the last ones are the machine's."""
    text: str = output["data"]["text/plain"]
    return re.sub(r"\d+\.\d+(?:e[-+]?\d+)?", lambda number: f"{float(number[0]):.6g}", text)


def test_there_are_notebooks() -> None:
    """The four that docs/python.md names."""
    named = (FOLDER.parent / "python.md").read_text()
    assert len(NOTEBOOKS) == 4 and all(name in named for name in NOTEBOOKS)


@pytest.mark.long(reason="runs whole notebooks in kernels of their own")
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_and_shows_what_it_shows(name: str) -> None:
    """No cell fails or writes an escape code; each gives the outputs that are kept, their texts alike."""
    from nbclient import NotebookClient

    kept = nbformat.read(FOLDER / name, as_version=4)
    notebook = nbformat.read(FOLDER / name, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(FOLDER)}}).execute()
    for ours, theirs in zip(kept.cells, notebook.cells, strict=True):
        found, expected = theirs.get("outputs", []), ours.get("outputs", [])
        assert "\x1b" not in str(found)
        found = [each for each in found if "data" in each]  # A slow cell says how far it is.
        assert [sorted(each["data"]) for each in found] == [sorted(each["data"]) for each in expected]
        assert [*map(texts, found)] == [*map(texts, expected)]


def test_a_load_curve_takes_six_lines() -> None:
    """From the import to the picture."""
    cell = nbformat.read(FOLDER / "load-curve.ipynb", as_version=4).cells[1]
    lines = [line for line in cell.source.splitlines() if line.strip()]
    assert lines[0] == "import sundog" and "load_curve" in lines[-1] and len(lines) <= 6
