"""`sundog serve --pool`: prompts computed by one engine process and answered by another."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("torch", reason="the engine extra is not installed")

from tests import warm
from tests.live import Live, Stream, live
from tests.patience import START_S

APART = ("--pool", "prefill=cpu:x1", "--pool", "decode=cpu:x1")
SERVE = ("sundog", "serve", "--port", "0", "--debug", "--dtype", "float32")
MOVING = ("--router", "docs/routers/llumnix.py:Llumnix")
PROMPT = list(range(300, 340))
DRAWN = {"temperature": 1.0, "seed": 7}


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(*SERVE, *APART) as running:
        yield running
        running.assert_sound()
        assert running.stop() == 0


def counted(server: Live, name: str) -> float:
    text = httpx.get(f"{server.url}/metrics", timeout=START_S).text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name}{{"))


def answer(server: Live, **fields: Any) -> Any:
    """Each choice's text and end, and of which tokens of the prompt it has log probabilities."""
    choices = server.complete(PROMPT, max_tokens=24, **fields).json()["choices"]
    scored = [[sorted(each or ()) for each in choice["prompt_logprobs"] or ()] for choice in choices]
    return [(each["text"], each["finish_reason"]) for each in choices], scored


@pytest.mark.wall_clock
def test_two_processes_answer_as_one_does(server: Live) -> None:
    """Greedy, drawn by a seed, two choices at once, with the prompt's own log probabilities."""
    asked: list[dict[str, Any]] = [{}, DRAWN, {"n": 2, **DRAWN}, {"prompt_logprobs": 1}]
    with live(*SERVE) as whole:
        expected = [answer(whole, **fields) for fields in asked]
    begun, ended = (
        counted(server, name) for name in ("sundog:kv_transfers_total", "vllm:request_success_total")
    )
    assert [answer(server, **fields) for fields in asked] == expected
    assert counted(server, "sundog:kv_transfers_total") - begun == 5
    assert counted(server, "sundog:kv_transfer_bytes_total") > 0
    assert counted(server, "vllm:request_success_total") - ended == 5
    text = Stream(server, prompt=PROMPT, max_tokens=24).text
    assert text == expected[0][0][0][0]


RESTLESS = """
from typing import ClassVar
from sundog.actors.core.routers import RouterPolicy

class Restless(RouterPolicy):
    follows_steps: ClassVar[bool] = True
    moves_every_s: ClassVar[float] = 0.02

    def score(self, request, replica, fleet):
        return -fleet.num_requests(replica)

    def moves(self, fleet):
        one, other = fleet.up[-2:]
        back = [(each, one) for each in fleet.requests(other)[:1]]
        return [*back, *((each, other) for each in fleet.requests(one)[:1])]
"""


@pytest.mark.wall_clock
def test_a_request_that_is_moved_takes_its_keys_along_and_goes_on(server: Live, tmp_path: Path) -> None:
    """Between two engines that decode, token for token."""
    (tmp_path / "restless.py").write_text(RESTLESS)
    asked: dict[str, Any] = {"max_tokens": 900, "ignore_eos": True}
    expected = server.complete(PROMPT, **asked).json()["choices"][0]["text"]
    router = f"{tmp_path}/restless.py:Restless"
    pools = ("--pool", "prefill=cpu:x1", "--pool", "decode=cpu:x2")
    with live(*SERVE, *pools, "--router", router) as moving:
        streams = [Stream(moving, prompt=PROMPT, **asked) for _ in range(4)]
        assert [stream.whole() and stream.text for stream in streams] == [expected] * 4
        assert counted(moving, "sundog:kv_transfers_total") > 4
        moving.assert_sound()


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.wall_clock
@pytest.mark.parametrize("role", [0, 1], ids=["prefill", "decode"])
def test_when_either_process_is_killed_each_request_ends_once_and_more_are_served(
    server: Live, role: int
) -> None:
    """What had a token and lost its engine ends with an error; what had none is answered whole."""
    expected = server.complete(PROMPT, max_tokens=300, ignore_eos=True).json()["choices"][0]["text"]
    streams = [Stream(server, prompt=PROMPT, max_tokens=300, ignore_eos=True) for _ in range(4)]
    streams[0].begun.wait(START_S)
    (process,) = server.below(f"sundog engine {role}")
    process.send_signal(signal.SIGKILL)
    ends = [stream.whole() for stream in streams]
    for stream, events in zip(streams, ends, strict=True):
        assert "error" in events[-1] or stream.text == expected
    server.until_health(200)
    assert server.complete(PROMPT, max_tokens=300, ignore_eos=True).json()["choices"][0]["text"] == expected
    server.said[:] = [line for line in server.said if f"engine {role}" not in line and "SIGKILL" not in line]


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--pool", "prefill=cpu:x1"), "give prefill and decode, or both alone"),
        (("--pool", "prefill=cpux1"), "--pool is prefill=cpux1"),
        (("--pool", "both=h100:x2"), "run on the CPU: give ROLE=cpu:xM"),
        (("--pool", "both=cpu:tp2x2"), "run on the CPU: give ROLE=cpu:xM"),
        (("--pool", "both=cpu:x2:max_num_seqs=4"), "share their options: give --max-num-seqs"),
        ((*APART, "--replicas", "2"), "--replicas cannot be combined with --pool"),
        ((*APART, "--tensor-parallel-size", "2"), "--tensor-parallel-size cannot be combined with --pool"),
        ((*APART, "--in-process"), "--in-process cannot be combined with --pool"),
        ((*APART, "--device", "cuda"), "--device cuda cannot be combined with --pool"),
        ((*APART, "--record", "run"), "--record: a journal has each request on one engine"),
        (
            ("--replicas", "2", *MOVING, "--record", "run"),
            "--record: a journal has each request on one engine",
        ),
    ],
)
def test_what_cannot_be_in_pools_is_refused_in_one_line(options: tuple[str, ...], words: str) -> None:
    done = warm.run("sundog", "serve", "--port", "0", *options)
    said = [line for line in done.stderr.splitlines() if line.startswith("sundog: ")]
    assert done.returncode == 2 and len(said) == 1 and words in said[0], done.stderr
