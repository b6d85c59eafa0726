"""Model loading that never ends, at start and restart: `--load-timeout` ends it with a message."""

import os
import re
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

pytest.importorskip("torch", reason="the engine extra is not installed")

from tests import warm
from tests.live import live
from tests.patience import START_S, STOP_S
from tests.processes import below, gone
from tests.runtime.worker.test_processes import engine

FAULTY = ("tests.runtime.worker.faulty_loads", "serve", "--port", "0")
LOAD_S = 15.0
"""Long enough for a load that goes on, on any machine."""


@pytest.fixture
def hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file whose words say which rank does not load."""
    monkeypatch.setenv("SUNDOG_TEST_HANGS", str(tmp_path / "hangs"))
    return tmp_path / "hangs"


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_rank_that_does_not_load_ends_the_server_in_one_line(hangs: Path) -> None:
    """Which names it by what its Runner was doing, and the option."""
    hangs.write_text("1")
    done = warm.run(*FAULTY, "-tp", "2", "--dtype", "float32", "--load-timeout", "3")
    lines = [line for line in done.stderr.splitlines() if "--load-timeout" in line]
    assert done.returncode == 2 and len(lines) == 1 and "Traceback" not in done.stderr, done.stderr
    assert "the engine process " in lines[0] and "was not ready within 3 s" in lines[0]
    assert "runner-0.1: handling Load for" in lines[0]


@pytest.mark.long(keep=1, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize(("number", "name"), [("0", "sundog engine 0"), ("1", "sundog rank 0.1")])
def test_a_process_that_is_killed_while_it_loads_ends_the_server_in_one_line(
    hangs: Path, number: str, name: str
) -> None:
    """As the kernel does where memory runs out; the line says so."""
    hangs.write_text(number)
    command = [sys.executable, "-m", *FAULTY, "-tp", "2", "--dtype", "float32"]
    begun = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline_s = time.monotonic() + START_S
    while not hangs.with_name("hanging").exists():
        assert time.monotonic() < deadline_s and begun.poll() is None
        time.sleep(0.01)
    (killed,) = below(begun.pid, name)
    killed.kill()
    _, said = begun.communicate(timeout=STOP_S)
    lines = [line for line in said.splitlines() if "while the model was loaded: out of memory?" in line]
    assert begun.returncode == 2 and len(lines) == 1 and "Traceback" not in said, said
    assert lines[0].startswith("sundog: ") and "was killed by SIGKILL (signal 9)" in lines[0]


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_fork_server_that_is_killed_before_it_is_ready_ends_the_server_in_one_line() -> None:
    """It is killed as often as it begins: the first time nothing may wait for it yet."""
    begun = subprocess.Popen(
        [sys.executable, "-m", "sundog", "serve", "--port", "0"], stderr=subprocess.PIPE, text=True
    )
    deadline_s = time.monotonic() + START_S
    while begun.poll() is None:
        assert time.monotonic() < deadline_s
        for each in psutil.Process(begun.pid).children():
            with suppress(psutil.NoSuchProcess):
                each.kill()
        time.sleep(0.05)
    _, said = begun.communicate(timeout=STOP_S)
    assert begun.returncode == 2 and "Traceback" not in said, said
    assert said.count("sundog: no engine process can begin: the process that starts engines ended") == 1


def address_space() -> int:
    """Bytes of addresses that an engine takes before its weights and KV cache; torch's builds differ."""
    loads = "import sundog.runtime.engine.model_loader; print(open('/proc/self/status').read())"
    said = subprocess.run([sys.executable, "-c", loads], capture_output=True, text=True, check=True).stdout
    found = re.search(r"VmPeak:\s+(\d+) kB", said)
    assert found is not None, said
    return int(found[1]) << 10


@pytest.mark.parametrize(
    "error",
    [
        "ImportError('libtorch_cpu.so: failed to map segment from shared object')",
        "OSError('libcudart.so.13')",
    ],
)
def test_a_torch_that_cannot_be_loaded_is_one_line(tmp_path: Path, error: str) -> None:
    """Its libraries map more memory than a container allows, or a part of an installation is missing."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(f"raise {error}")
    done = subprocess.run(
        [sys.executable, "-m", "sundog", "serve", "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        timeout=START_S,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    lines = [line for line in done.stderr.splitlines() if "cannot be loaded: lib" in line]
    assert done.returncode == 2 and len(lines) == 1 and "Traceback" not in done.stderr, done.stderr
    assert "torch is installed" in lines[0] and "more memory" in lines[0]


@pytest.mark.long(keep=1, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize("options", [("--in-process",), (), ("-tp", "2", "--dtype", "float32")])
def test_memory_that_runs_out_while_a_model_is_loaded_is_one_line(options: tuple[str, ...]) -> None:
    """With what helps; here the KV cache does not fit into the address space."""
    command = [sys.executable, "-m", "sundog", "serve", "--port", "0", "--num-gpu-blocks", "50000", *options]
    most = address_space() + (1 << 30)
    done = subprocess.run(
        command,
        stderr=subprocess.PIPE,
        text=True,
        timeout=START_S,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most)),
    )
    lines = [line for line in done.stderr.splitlines() if "not enough memory on the device" in line]
    assert done.returncode == 2 and len(lines) == 1 and "Traceback" not in done.stderr, done.stderr
    assert "Unable to allocate" in lines[0] and "--num-gpu-blocks" in lines[0]


@pytest.mark.long(reason="waits for an engine that loads again")
def test_an_engine_that_does_not_load_again_is_ended_named_and_tried_again(hangs: Path) -> None:
    """The server goes on, and serves once a load ends."""
    with live(*FAULTY, "--load-timeout", str(LOAD_S)) as server:
        hangs.write_text("0")
        engine(server).send_signal(signal.SIGKILL)
        server.until_health(503)
        stuck = engine(server)
        server.until_it_says(f"was not ready within {LOAD_S:g} s")
        assert "runner-0.0: handling Load for" in "".join(server.said)
        gone([stuck])
        hangs.unlink()
        server.until_health(200)
        assert server.complete(max_tokens=4).status_code == 200
