"""Model shared by processes: effects of real signals on its ranks, and refusals (`docs/ranks.md`)."""

import re
import signal
import time
from collections.abc import Iterator

import psutil
import pytest

pytest.importorskip("torch", reason="the engine extra is not installed")

from tests import warm
from tests.live import Live, Stream, live
from tests.patience import START_S
from tests.processes import gone
from tests.runtime.worker.faulty_ranks import RAISES
from tests.runtime.worker.test_processes import LONG, all_blocks_are_free, descendants, engine

NUM_RANKS = 2
STALL_S = 4.0
SHARED = ("--port", "0", "-tp", str(NUM_RANKS), "--dtype", "float32", "--max-num-seqs", "2", "--debug")
TEXT = " there was a brave dog named Ruby who lived in a cave behind a waterfall."
"""What the embedded model says in float32; a process alone says the same."""


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    """The embedded model, shared by two processes."""
    with live(
        "tests.runtime.worker.faulty_ranks", "serve", *SHARED, "--stall-timeout", str(STALL_S)
    ) as running:
        yield running


def ranks(server: Live) -> list[psutil.Process]:
    """All but rank 0, which is the engine process, once they are there."""
    deadline_s = time.monotonic() + START_S
    while len(found := engine(server).children()) < NUM_RANKS - 1:
        assert time.monotonic() < deadline_s, "no ranks"
        time.sleep(0.01)
    return found


def answers(server: Live) -> None:
    """The server gives the text that it gave before; a 503 says that it has only now seen a process end."""
    deadline_s = time.monotonic() + START_S
    while (answer := server.complete(max_tokens=16)).status_code == 503:
        assert time.monotonic() < deadline_s, answer.text
        time.sleep(0.1)
    assert answer.json()["choices"][0]["text"] == TEXT
    all_blocks_are_free(server)


def ends_and_comes_back(server: Live, stream: Stream, before: list[psutil.Process]) -> str:
    """The stream has an error event, all processes are gone, others answer; what was said."""
    assert "engine failed" in stream.whole()[-1]["error"]["message"]
    gone(before)
    assert server.until_health(200) < START_S
    answers(server)
    assert len(ranks(server)) == NUM_RANKS - 1
    return "".join(server.said)


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_ranks_that_share_a_model_answer_as_one_process_does(server: Live) -> None:
    """The same text, by a seed too; what only rank 0 looks at, and what all compute for it, come through."""
    answers(server)
    asked = {"max_tokens": 12, "temperature": 0.8, "seed": 5}
    texts = {server.complete(**asked).json()["choices"][0]["text"] for _ in range(2)}
    assert texts == {" there was a funny elephant named Sam who lived in a garden"}
    scored = server.complete("The fox is", max_tokens=1, prompt_logprobs=0).json()["choices"][0]
    assert [len(each or ()) for each in scored["prompt_logprobs"]] == [
        0,
        *[1] * (len(scored["prompt_logprobs"]) - 1),
    ]
    (rank,) = ranks(server)
    assert rank.name().startswith("sundog rank 0.")


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_a_killed_rank_takes_its_replica_down_and_both_come_back(server: Live) -> None:
    """kill -9; the log names the rank and the signal, without a traceback."""
    stream = Stream(server, **LONG)
    stream.begun.wait()
    before = [engine(server), *ranks(server)]
    before[1].kill()
    said = ends_and_comes_back(server, stream, before)
    assert f"rank 1 (process {before[1].pid}) was killed by SIGKILL (signal 9)" in said
    assert "Traceback" not in said


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_a_rank_that_is_killed_while_nothing_runs_is_replaced(server: Live) -> None:
    """Nobody waits for it, and it is missed all the same."""
    before = [engine(server), *ranks(server)]
    before[1].kill()
    gone(before)
    server.until_replaced(before[:1])
    answers(server)


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_a_killed_engine_process_leaves_no_rank(server: Live) -> None:
    """kill -9 of rank 0, while the other is stopped."""
    stream = Stream(server, **LONG)
    stream.begun.wait()
    before = [engine(server), *ranks(server)]
    before[1].send_signal(signal.SIGSTOP)
    before[0].kill()
    ends_and_comes_back(server, stream, before)


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_a_rank_that_is_stopped_is_named_and_replaced(server: Live) -> None:
    """SIGSTOP: rank 0 waits for it in a collective, and is let go."""
    stream = Stream(server, **LONG)
    stream.begun.wait()
    before = [engine(server), *ranks(server)]
    before[1].send_signal(signal.SIGSTOP)
    said = ends_and_comes_back(server, stream, before)
    assert f"RankLost: rank 1 (process {before[1].pid}) gave no sign of life for" in said
    assert "    runner-0.1: " in said


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("number", range(NUM_RANKS))
def test_a_rank_that_raises_in_a_step_leaves_nobody_waiting(server: Live, number: int) -> None:
    """The others are in a collective then, which one of them would never leave."""
    before = [engine(server), *ranks(server)]
    stream = Stream(server, seed=RAISES + number, **LONG)
    said = ends_and_comes_back(server, stream, before)
    named = (
        f"rank 1 (process {before[1].pid}) failed: RuntimeError: injected"
        if number
        else "RuntimeError: injected"
    )
    assert named in said


def test_a_server_that_is_told_to_stop_ends_its_ranks() -> None:
    """SIGTERM, and no process is left."""
    with live("sundog", "serve", *SHARED) as server:
        left = descendants(server)
        assert len(left) == 2 + NUM_RANKS - 1
        assert server.stop() == 0
        gone(left)


@pytest.mark.long(rare=True, reason="loads models in ranks that are killed")
def test_a_server_that_is_killed_leaves_no_rank() -> None:
    """kill -9 of the server, while a rank is stopped; before, an answer that keeps to a grammar."""
    with live("sundog", "serve", *SHARED) as server:
        (rank,) = ranks(server)
        constrained = server.complete(max_tokens=8, structured_outputs={"regex": "[0-9]{3}"})
        assert re.fullmatch("[0-9]{3}", constrained.json()["choices"][0]["text"])
        left = descendants(server)
        rank.send_signal(signal.SIGSTOP)
        server.hurt(signal.SIGKILL)
        gone(left)


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_fewer_heads_than_ranks_are_refused_in_one_line() -> None:
    """Before an engine process begins."""
    done = warm.run("sundog", "serve", "--port", "0", "-tp", "3")
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "--tensor-parallel-size is 3" in line and "has 2 KV heads, fewer than ranks" in line
