"""Engine in a process of its own, which real signals stop and kill (`docs/processes.md`)."""

import random
import re
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

pytest.importorskip("torch", reason="the engine extra is not installed")

from sundog.actors.graph import open_graph
from sundog.actors.messages import Accepted, Generate, Sampling
from sundog.builds.engine_process import GPU_FILES
from sundog.options.engine import EngineOptions
from sundog.runtime.serve import RealModel, torch_backends
from sundog.runtime.worker.forks import AGAIN_S
from tests.live import Live, Stream, live
from tests.patience import START_S, STOP_S
from tests.processes import gone

STALL_S = 4.0
SERVE = ("sundog", "serve", "--port", "0", "--stall-timeout", str(STALL_S), "--max-num-seqs", "2", "--debug")
LONG = {"max_tokens": 300, "ignore_eos": True}


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    """One that computes the embedded model in another process; here each imports what it takes."""
    with live(*SERVE, afresh=True) as running:
        yield running


def descendants(server: Live) -> list[psutil.Process]:
    """The fork server, and the engine process that it made."""
    return psutil.Process(server.process.pid).children(recursive=True)


def engine(server: Live) -> psutil.Process:
    """The engine process, once there is one."""
    return server.below("sundog engine ")[0]


def all_blocks_are_free(server: Live) -> None:
    """As /metrics says once nothing runs."""
    deadline_s = time.monotonic() + START_S
    while True:
        text = httpx.get(f"{server.url}/metrics", timeout=START_S).text
        if re.search(r"^vllm:kv_cache_usage_perc.* 0(\.0)?$", text, re.MULTILINE):
            return
        assert time.monotonic() < deadline_s, text
        time.sleep(0.05)


def kill_and_check(server: Live, delay_s: float) -> None:
    """Kill the engine under load: what had begun ends with an error, what had not is answered in full."""
    plain = server.complete("The fox", max_tokens=20).json()["choices"][0]["text"]
    running = engine(server)
    streams = [Stream(server, prompt="The fox", **LONG) for _ in range(2)]
    for stream in streams:
        stream.begun.wait()
    waiting = [Stream(server, prompt="The fox", max_tokens=20) for _ in range(3)]
    for stream in waiting:
        stream.accepted.wait()
    time.sleep(delay_s)
    running.kill()
    assert server.until_replaced([running]) < START_S
    for stream in streams:
        assert "engine failed" in stream.whole()[-1]["error"]["message"]
    assert [stream.text for stream in waiting] == [plain] * 3
    all_blocks_are_free(server)


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_a_killed_engine_ends_what_had_begun_and_answers_what_had_not(server: Live) -> None:
    """kill -9; the log says by which signal, in one block."""
    kill_and_check(server, 0.0)
    said = "".join(server.said)
    assert "was killed by SIGKILL (signal 9)" in said and "Traceback" not in said, said


@pytest.mark.skipif(any(Path(each).exists() for each in GPU_FILES), reason="there engines import torch")
def test_torch_is_imported_before_a_fork_and_not_after_it(server: Live) -> None:
    """Else every restart would take the seconds that importing takes."""
    (forks,) = server.below("sundog engines")
    assert any("libtorch" in mapped.path for mapped in forks.memory_maps())


@pytest.mark.long(rare=True, reason="loads models in engines that are killed")
@pytest.mark.parametrize("seed", [0, 5])
def test_engines_that_are_killed_again_and_again_lose_nothing_that_had_not_begun(seed: int) -> None:
    """Ten times in all, whenever. Each crash in succession is waited for longer, so five on each server."""
    with live(*SERVE) as server:
        for number in range(seed, seed + 5):
            kill_and_check(server, random.Random(number).uniform(0.0, 0.3))
        assert server.stop() == 0


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_an_engine_that_is_stopped_is_noticed_reported_and_replaced(server: Live) -> None:
    """SIGSTOP: the log has what each of its actors was doing."""
    stopped = engine(server)
    stream = Stream(server, **LONG)
    stream.begun.wait()
    stopped.send_signal(signal.SIGSTOP)
    assert server.until_replaced([stopped]) < START_S
    assert "engine failed" in stream.whole()[-1]["error"]["message"]
    said = "".join(server.said)
    assert "EngineStalled: the engine process gave no sign of life for" in said
    for actor in ("scheduler-0: ", "kv-cache-manager-0: ", "executor-0: ", "runner-0.0: "):
        assert f"    {actor}" in said
    gone([stopped])
    assert server.complete(max_tokens=4).status_code == 200


@pytest.mark.wall_clock
async def test_a_core_elsewhere_answers_as_one_here(server: Live) -> None:
    """The same text, and the same log probabilities to the last digit."""
    asked = {"prompt": "The fox", "max_tokens": 20, "logprobs": 2, "temperature": 0}
    async with httpx.AsyncClient() as client:
        answer = await client.post(f"{server.url}/v1/completions", json=asked, timeout=START_S)
    elsewhere = answer.json()["choices"][0]
    model = RealModel.open(None)
    config = EngineOptions(max_num_seqs=2).config(model.max_position_embeddings)
    generate = Generate("The fox", Sampling(temperature=0.0, max_tokens=20, logprobs=2))
    graph = open_graph(
        config, [torch_backends(model, config)(0)], codec=model.tokenizer, vocabulary=model.vocabulary
    )
    async with graph as here:
        accepted = await here.ask(generate)
        assert isinstance(accepted, Accepted)
        deltas = [delta async for delta in accepted.stream]
    assert "".join(delta.text for delta in deltas) == elsewhere["text"]
    logprobs = [each.logprob for delta in deltas for each in delta.logprobs]
    assert logprobs == elsewhere["logprobs"]["token_logprobs"]


@pytest.mark.long(keep=1, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_engine_outlives_the_process_it_is_forked_from(server: Live, number: signal.Signals) -> None:
    """Its streams go on to the end; another fork server is begun at once, and forks the next engine."""
    running, (forks,) = engine(server), server.below("sundog engines")
    time.sleep(AGAIN_S)
    stream = Stream(server, **LONG)
    stream.begun.wait()
    forks.send_signal(number)
    assert not stream.events or stream.events[-1] != "[DONE]"
    deadline_s = time.monotonic() + START_S
    while forks in server.below("sundog engines"):
        assert time.monotonic() < deadline_s, "no other is begun"
        assert server.health().status_code == 200
    assert stream.whole()[-1]["choices"][0]["finish_reason"] == "length"
    assert engine(server) == running
    running.kill()
    server.until_replaced([running])
    assert server.complete(max_tokens=4).status_code == 200
    gone([forks, running])


def test_a_server_that_is_killed_leaves_no_process_socket_or_shared_memory() -> None:
    """kill -9 under load, even while its engine is stopped."""
    with live(*SERVE) as server:
        check_nothing_is_left_of(server)


def check_nothing_is_left_of(server: Live) -> None:
    asked = {"prompt": "The fox", "stream": True, **LONG}
    folders = [Path(tempfile.gettempdir()), Path("/dev/shm")]
    begun_s = psutil.Process(server.process.pid).create_time()  # what is older was another's of this number
    with httpx.stream("POST", f"{server.url}/v1/completions", json=asked, timeout=START_S) as answer:
        lines = answer.iter_lines()
        next(lines)
        left = descendants(server)
        assert len(left) == 2
        engine(server).send_signal(signal.SIGSTOP)
        server.hurt(signal.SIGKILL)
        server.process.wait(STOP_S)
        gone(left)
        with pytest.raises(httpx.HTTPError):
            list(lines)
    pids = str(left[0].pid), str(server.process.pid)
    own = [path for folder in folders for path in folder.iterdir() if any(pid in path.name for pid in pids)]
    assert not [path for path in own if path.exists() and path.stat().st_mtime >= begun_s]
