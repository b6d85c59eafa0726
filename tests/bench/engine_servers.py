"""Servers compared by the engine's benchmark, each started as its own documentation recommends."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped]  # ships no types

ROOT = Path(__file__).resolve().parents[2]
MAX_MODEL_LEN = 8448
MAX_NUM_SEQS = 64
NUM_CACHED = 20_000
"""Tokens that llama.cpp's cache holds: 64 requests of 256, or one long prompt beside some."""
MOST_START_S = 300


@dataclass(frozen=True, slots=True)
class Kind:
    """A server to compare: its name in the table, and how it is started without its port."""

    name: str
    command: list[str]
    env: dict[str, str]


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers; `ready_s` is what that took."""

    name: str
    port: int
    ready_s: float
    process: psutil.Process

    def family(self) -> list[psutil.Process]:
        """The process and its children."""
        return [self.process, *self.process.children(recursive=True)]

    def memory_gb(self) -> float:
        """Memory of all of them; a page that processes share counts as a part for each (PSS)."""
        return float(sum(one.memory_full_info().pss for one in self.family())) / 1e9

    def cpu_s(self) -> float:
        """Processor time that all of them have taken so far."""
        times = [one.cpu_times() for one in self.family()]
        return float(sum(one.user + one.system for one in times))


@contextmanager
def serving(kind: Kind) -> Iterator[Server]:
    """Start a server, wait for it, end it and its children."""
    begin_s, port = time.perf_counter(), free_port()
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            [*kind.command, "--port", str(port)],
            env=os.environ | kind.env,
            cwd=ROOT,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            while True:
                try:
                    if httpx.get(f"http://127.0.0.1:{port}/health", timeout=2).status_code == 200:
                        break
                except httpx.HTTPError:
                    pass
                if child.poll() is not None or time.perf_counter() - begin_s > MOST_START_S:
                    said.seek(0)
                    raise RuntimeError(f"{kind.name} did not start: {said.read()[-2000:].decode()}")
                time.sleep(0.02)
            yield Server(kind.name, port, time.perf_counter() - begin_s, psutil.Process(child.pid))
        finally:
            with suppress(ProcessLookupError):  # it ended by itself
                os.killpg(child.pid, signal.SIGTERM)
            try:
                child.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def ours(folder: Path, *options: str) -> Kind:
    """This tree's server; the options go behind its command."""
    command = [sys.executable, "-m", "sundog", "serve", str(folder), "--served-model-name", "m", *options]
    limits = ["--max-num-seqs", str(MAX_NUM_SEQS), "--max-model-len", str(MAX_MODEL_LEN)]
    name = " ".join(["sundog", *(option for option in options if not option.startswith("-"))])
    return Kind(name, [*command, *limits], {"PYTHONPATH": str(ROOT)})


def vllms(python: str, folder: Path) -> Kind:
    """vLLM's CPU build with its own recommendations, as far as they are there."""
    home = Path(python).parent
    preloads = [
        *Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"),
        *(home.parent / "lib").glob("libiomp5.so"),
    ]
    if not any("tcmalloc" in path.name for path in preloads):
        print("vllm: there is no tcmalloc here, which vLLM recommends on a CPU", flush=True)
    env = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",
        "LD_PRELOAD": ":".join(map(str, preloads)),
    }
    command = [str(home / "vllm"), "serve", str(folder), "--served-model-name", "m", "--host", "127.0.0.1"]
    limits = ["--max-num-seqs", str(MAX_NUM_SEQS), "--max-model-len", str(MAX_MODEL_LEN)]
    return Kind("vllm", [*command, *limits], env)


def llama_cpps(binaries: Path, gguf: Path, name: str = "llama.cpp") -> Kind:
    """llama.cpp's server with flash attention, one cache for all requests and a thread a core."""
    command = [str(binaries / "llama-server"), "--model", str(gguf), "--host", "127.0.0.1", "--no-webui"]
    cache = ["--ctx-size", str(NUM_CACHED), "--kv-unified", "--cache-ram", "0"]
    shape = ["--parallel", str(MAX_NUM_SEQS), "--threads", str(os.cpu_count() or 1), "--flash-attn", "on"]
    return Kind(name, [*command, *cache, *shape], {})
