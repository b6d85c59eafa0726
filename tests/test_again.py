"""`python -m tests.again`: a few failures are tried once more and named; many, or again, stay failures."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

FAILS_ONCE = """
from pathlib import Path

def test_meets_a_limit_once():
    mark = Path("met")
    met = mark.exists()
    mark.touch()
    assert met
"""
FAILS_ALWAYS = "def test_is_wrong():\n    assert False\n"
PASSES = "def test_is_right():\n    pass\n"
MANY = "import pytest\n@pytest.mark.parametrize('n', range(6))\ndef test_is_wrong(n):\n    assert False\n"
CANNOT_BE_READ = "import nothing_of_this_name\n"


@pytest.mark.parametrize(
    ("files", "status", "said", "unsaid"),
    [
        ([PASSES], 0, "1 passed", "Once more"),
        ([PASSES, FAILS_ONCE], 0, "Passed alone, failed beside the others:", "Traceback"),
        ([PASSES, FAILS_ONCE, FAILS_ALWAYS], 1, "Once more, alone:", "Passed alone"),
        ([PASSES, MANY], 1, "6 failed", "Once more"),
        ([PASSES, CANNOT_BE_READ], 2, "nothing_of_this_name", "Once more"),
    ],
    ids=["none", "once", "always", "many", "unreadable"],
)
def test_what_failed_is_tried_again(
    tmp_path: Path, files: list[str], status: int, said: str, unsaid: str
) -> None:
    for number, text in enumerate(files):
        (tmp_path / f"test_{number}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "tests.again", "--", "--numprocesses", "0"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert said in done.stdout
    assert unsaid not in done.stdout
