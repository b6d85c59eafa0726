"""A measured server in a child process ends with its parent."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from sundog.actors.config import ConfigError
from sundog.child import serving
from tests.patience import START_S

MEASURES = """
import sys, time
from pathlib import Path
from sundog.child import serving
with serving("llama-3.1-8b", Path(sys.argv[1]), "--gpu", "h100", command="emulate") as url:
    print(url, flush=True)
    time.sleep(600)
"""


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_server_ends_when_who_measures_it_is_killed(tmp_path: Path) -> None:
    """kill -9, which no code of its parent notices."""
    command = [sys.executable, "-c", MEASURES, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as measures:
        assert measures.stdout is not None
        assert measures.stdout.readline().startswith("http://")
        left = psutil.Process(measures.pid).children(recursive=True)
        measures.kill()
    assert left and not psutil.wait_procs(left, START_S)[1]
    assert "stopping" in (tmp_path / "server.log").read_text()


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    """With its last words, at once."""
    words = "did not start; it said: model folder .*nowhere"
    with pytest.raises(ConfigError, match=words), serving(str(tmp_path / "nowhere"), tmp_path):
        pass
