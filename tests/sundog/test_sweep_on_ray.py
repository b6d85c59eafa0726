"""`sweep --on ray`: same bytes as a local sweep, also when resumed, and jobs that a node cannot run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.live import START_S, STOP_S
from tests.processes import below, is_there
from tests.sundog.test_packaging import TRACE
from tests.sundog.test_runs import refused, sundog

ASKED = (str(TRACE), "--limit", "60", "--vary", "policy=fcfs,priority", "--resample", "--replications", "10")
NUM_RUNS = 20
QUICK_S = 10.0
"""It takes 0.3 s where processors are free."""


def files(folder: Path) -> dict[str, bytes]:
    """What is in a folder, by path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_no_place_is_refused(tmp_path: Path) -> None:
    """By the option's name, before anything runs."""
    refused(sundog("sweep", *ASKED, "--on", "here"), "--on is here", "ray:HOST:PORT")
    assert not list(tmp_path.iterdir())


@pytest.mark.ray
def test_a_sweep_on_a_cluster_leaves_the_bytes_of_one_here(tmp_path: Path) -> None:
    """The folder, the table and stdout; broken off half-way by Ctrl-C, and gone on with."""
    here, there = tmp_path / "here", tmp_path / "there"
    done = sundog("sweep", *ASKED, "--out", here, "--json")
    command = [sys.executable, "-m", "sundog", "sweep", *ASKED, "--out", str(there), "--json", "--on", "ray"]
    broken = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline_s = time.monotonic() + START_S
    while not (kept := list(there.glob("runs/*/seed-?"))):
        assert time.monotonic() < deadline_s and broken.poll() is None, "nothing has run"
        time.sleep(0.01)
    left = psutil.Process(broken.pid).children(recursive=True)
    broken.send_signal(signal.SIGINT)
    out, said = broken.communicate(timeout=STOP_S)
    assert broken.returncode == 130 and not out and "the same command resumes" in said
    assert not [each for each in left if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    assert len(list(there.glob("runs/*/seed-?"))) < NUM_RUNS, "it was not broken off"
    before = {path: (path / "config.toml").stat().st_mtime_ns for path in kept}
    again = subprocess.run(command, capture_output=True, text=True, check=True, timeout=START_S)
    assert again.stdout == done.stdout and files(there) == files(here)
    assert {path: (path / "config.toml").stat().st_mtime_ns for path in kept} == before


SLOW_RAY = """
import subprocess, time

def init(**options):
    subprocess.Popen(["sleep", "300"], start_new_session=True)
    time.sleep(300)
"""
"""A Ray that begins processes, and never comes to an end of that."""


@pytest.mark.parametrize("is_real", [False, pytest.param(True, marks=pytest.mark.ray)])
def test_ctrl_c_while_a_cluster_begins_is_quick_and_leaves_nothing(tmp_path: Path, is_real: bool) -> None:
    """Whatever Ray is about to do; it takes long where processors are few."""
    (tmp_path / "ray.py").write_text(SLOW_RAY)
    path = os.environ.get("PYTHONPATH", "")
    begun = subprocess.Popen(
        [sys.executable, "-m", "sundog", "sweep", *ASKED, "--on", "ray"],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ if is_real else {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{path}"},
    )
    deadline_s = time.monotonic() + START_S
    while not (some := below(begun.pid, "(sleep|gcs_server)$")):
        assert time.monotonic() < deadline_s and begun.poll() is None, "Ray has begun nothing"
        time.sleep(0.01)
    left, start_s = children_of(begun), time.monotonic()
    begun.send_signal(signal.SIGINT)
    _, said = begun.communicate(timeout=STOP_S)
    assert begun.returncode == 130 and "Traceback" not in said, said
    assert time.monotonic() - start_s < QUICK_S
    assert some and not [each for each in left if is_there(each)]


def children_of(begun: "subprocess.Popen[str]") -> list[psutil.Process]:
    """All processes below this one."""
    return psutil.Process(begun.pid).children(recursive=True)


@pytest.mark.ray
def test_a_node_that_does_not_see_the_folder_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its runs fail, by the node's name and the folder's; nothing is kept where nobody looks for it."""
    pytest.importorskip("ray")
    from sundog.options.engine import EngineOptions
    from sundog.options.simulation import LoadOptions, TargetOptions, TermsOptions
    from sundog.sim.figures.sweep.cells import FailedRun
    from sundog.sweeps.cell import CellRunner, Plan
    from sundog.sweeps.experiment import RemoteRunner
    from sundog.sweeps.sweep_folder import SweepFolder

    folder = SweepFolder(tmp_path / "elsewhere", ({},))
    plan = Plan(
        {"scaled": {"trace": str(TRACE)}},
        str(TRACE),
        EngineOptions(),
        TargetOptions(),
        LoadOptions(),
        TermsOptions(),
        folder=folder,
    )
    failed = RemoteRunner(CellRunner(plan), FailedRun, folder.path)(({}, 0))
    assert f"node {os.uname().nodename} cannot read {folder.path}" in str(failed)
    assert not folder.path.exists()


@pytest.mark.ray
def test_a_plan_on_a_cluster_is_the_plan_here(tmp_path: Path) -> None:
    """stdout and every trial that the folder keeps."""
    here, there = tmp_path / "here", tmp_path / "there"
    asked = ("plan", TRACE, "--limit", "60", "-tp", "1", "--slo", "p95(ttft)<1", "--json", "--jobs", "1")
    done = sundog(*asked, "--out", here)
    assert done.returncode == 0 and sundog(*asked, "--out", there, "--on", "ray").stdout == done.stdout
    assert files(there) == files(here)


@pytest.mark.ray
def test_a_process_that_is_killed_is_one_failed_run(tmp_path: Path) -> None:
    """The table has it with its reason, and the others."""
    command = ["sweep", *ASKED[:-1], "40", "--json", "--on", "ray", "--jobs", "1"]
    running = subprocess.Popen(
        [sys.executable, "-m", "sundog", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline_s = time.monotonic() + START_S
    killed: list[psutil.Process] = []
    while not killed:
        assert time.monotonic() < deadline_s and running.poll() is None, "no job has begun"
        killed = below(running.pid, r"ray::JobActor\.run$")
        time.sleep(0.002)
    killed[0].kill()
    out, said = running.communicate(timeout=START_S)
    assert running.returncode == 0, said
    rows = json.loads(out)
    text = json.dumps(rows)
    assert "its process ended" in text and "intervals" in text
