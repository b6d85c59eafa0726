"""`python -m tests.again`: a few failures on the real clock are rerun; all others stand."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

FAILS_ONCE = """
from pathlib import Path
import pytest

@pytest.mark.wall_clock
def test_meets_a_limit_once():
    mark = Path("met")
    met = mark.exists()
    mark.touch()
    assert met
"""
FAILS_ONCE_UNMARKED = FAILS_ONCE.replace("@pytest.mark.wall_clock", "").replace('"met"', '"met too"')
CONNECTS_AND_FAILS_ONCE = FAILS_ONCE_UNMARKED.replace(
    "    assert met", "    __import__('socket').socket().bind(('127.0.0.1', 0))\n    assert met"
)
BINDS_ON_THE_VIRTUAL_CLOCK = CONNECTS_AND_FAILS_ONCE.replace("def test", "async def test")
VIRTUAL = """
import inspect
import pytest

def pytest_pyfunc_call(pyfuncitem):
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        try:
            pyfuncitem.obj().send(None)
        except StopIteration:
            pass
        return True
"""
FAILS_ALWAYS = "import pytest\n@pytest.mark.wall_clock\ndef test_is_wrong():\n    assert False\n"
PASSES = "def test_is_right():\n    pass\n"
MANY = """
import pytest

@pytest.mark.wall_clock
@pytest.mark.parametrize("n", range(6))
def test_is_wrong(n):
    assert False
"""
CANNOT_BE_READ = "import nothing_of_this_name\n"


@pytest.mark.parametrize(
    ("files", "status", "said", "unsaid"),
    [
        ([PASSES], 0, "1 passed", "Once more"),
        ([PASSES, FAILS_ONCE], 0, "Passed alone, failed beside the others:", "Traceback"),
        ([PASSES, FAILS_ONCE, FAILS_ALWAYS], 1, "Once more, alone:", "Passed alone"),
        ([PASSES, CONNECTS_AND_FAILS_ONCE], 0, "Passed alone, failed beside the others:", "Traceback"),
        ([PASSES, FAILS_ONCE_UNMARKED], 1, "Not run again", "Once more"),
        ([PASSES, FAILS_ONCE, FAILS_ONCE_UNMARKED], 1, "Not run again", "Once more"),
        ([PASSES, BINDS_ON_THE_VIRTUAL_CLOCK], 1, "Not run again", "Once more"),
        ([PASSES, MANY], 1, "6 failed", "Once more"),
        ([PASSES, CANNOT_BE_READ], 2, "nothing_of_this_name", "Once more"),
    ],
    ids=["none", "once", "always", "connects", "unmarked", "both", "virtual", "many", "unreadable"],
)
def test_what_failed_is_tried_again(
    tmp_path: Path, files: list[str], status: int, said: str, unsaid: str
) -> None:
    (tmp_path / "conftest.py").write_text(VIRTUAL)
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
    reruns = tmp_path / ".pytest_cache/reruns.txt"
    assert reruns.exists() == ("Once more" in done.stdout)
    if reruns.exists():
        assert "test_meets_a_limit_once: run again" in reruns.read_text()
        assert "assert met" in reruns.read_text()
