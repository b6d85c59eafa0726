"""Two replicas in processes that are killed repeatedly under load: no token is lost or sent twice."""

import os
import random
import re
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

pytest.importorskip("torch", reason="the engine extra is not installed")

from sundog.builds.engine_process import GPU_FILES
from tests.live import START_S, Live, live

NUM_SEQS = 3
SERVE = ("sundog", "serve", "--port", "0", "--replicas", "2", "--max-num-seqs", str(NUM_SEQS), "--debug")
PROMPTS = ("The fox", "Once upon a time there was", "A bird sat")
LENGTHS = (3, 30, 250)
NUM_CLIENTS = 8


@dataclass(eq=False)
class Client(threading.Thread):
    """Asks one thing after another, streamed, and keeps what came of each, for the test to judge."""

    server: Live
    seed: int
    enough: threading.Event
    answers: list[tuple[tuple[str, int], str, bool, str | None]] = field(default_factory=list)
    """What was asked, the text that came, whether any had come, and the error that it ended with."""
    num_refused: int = 0
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def run(self) -> None:
        rng = random.Random(self.seed)
        try:
            with httpx.Client(timeout=START_S) as client:
                while not self.enough.is_set():
                    self._ask(client, rng.choice(PROMPTS), rng.choice(LENGTHS))
        except (httpx.HTTPError, ValueError, LookupError) as error:
            self.wrong.append(repr(error))

    def _ask(self, client: httpx.Client, prompt: str, max_tokens: int) -> None:
        body = asked(prompt, max_tokens) | {"stream": True}
        with client.stream("POST", f"{self.server.url}/v1/completions", json=body) as answer:
            if answer.status_code == 503:
                self.num_refused += 1
                if int(answer.headers["Retry-After"]) < 1:
                    self.wrong.append("a Retry-After of nothing")
                time.sleep(0.1)
                return
            events = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
        if answer.status_code != 200 or events[-1:] != ["[DONE]"]:
            self.wrong.append(f"{answer.status_code}: {events[-2:]}")
            return
        self._keep(prompt, max_tokens, [httpx.Response(200, text=event).json() for event in events[:-1]])

    def _keep(self, prompt: str, max_tokens: int, events: list[Any]) -> None:
        chunks = [event["choices"][0] for event in events if "choices" in event]
        errors = [event["error"]["message"] for event in events if "error" in event]
        text = "".join(chunk["text"] for chunk in chunks)
        self.answers.append(((prompt, max_tokens), text, bool(chunks), errors[0] if errors else None))


def asked(prompt: str, max_tokens: int) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}


def plain_texts(server: Live) -> dict[tuple[str, int], str]:
    """What each question is answered with while nothing happens."""
    texts = {}
    for prompt in PROMPTS:
        for length in LENGTHS:
            answer = httpx.post(f"{server.url}/v1/completions", json=asked(prompt, length), timeout=START_S)
            texts[prompt, length] = answer.json()["choices"][0]["text"]
    return texts


def figures(server: Live) -> dict[str, float]:
    """/metrics, by name and labels."""
    text = httpx.get(f"{server.url}/metrics", timeout=START_S).text
    rows = re.findall(r"^([\w:]+(?:\{.*\})?) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in rows}


def summed(values: dict[str, float], name: str) -> float:
    found = [value for key, value in values.items() if key.partition("{")[0] == name]
    assert found, name
    return sum(found)


def engines(server: Live) -> list[psutil.Process]:
    return server.below("sundog engine ")


def kill_under_load(num_rounds: int, seed: int) -> None:
    """Kill one engine a round, now and then both; then compare what came with what should have."""
    rng = random.Random(seed)
    with live(*SERVE) as server:
        plain = plain_texts(server)
        check_cores(server)
        enough = threading.Event()
        clients = [Client(server, seed + number, enough) for number in range(NUM_CLIENTS)]
        for client in clients:
            client.start()
        killed = set[int]()
        for number in range(num_rounds):
            time.sleep(rng.uniform(0.3, 1.2))
            there = [engine for engine in engines(server) if engine.pid not in killed]
            for engine in there if number % 4 == 3 else there[:1] if rng.random() < 0.5 else there[-1:]:
                engine.kill()
                killed.add(engine.pid)
            if number % 2:
                until_whole(server)
        until_whole(server)
        enough.set()
        for client in clients:
            client.join(START_S)
            assert not client.is_alive(), "a request has no end"
        judge(server, plain, clients, len(killed))
        assert server.stop() == 0


def check_cores(server: Live) -> None:
    """Each replica has cores of its own, if there are as many; together they have all."""
    given, parts = os.sched_getaffinity(0), [engine.cpu_affinity() for engine in engines(server)]
    if len(given) >= len(parts) and not any(Path(each).exists() for each in GPU_FILES):
        assert sorted(core for part in parts for core in part) == sorted(given), parts


def until_whole(server: Live) -> None:
    """Wait until every engine is up."""
    deadline_s = time.monotonic() + START_S
    while server.health().json() != {"status": "ok"}:
        assert time.monotonic() < deadline_s, server.health().text
        time.sleep(0.02)


def judge(server: Live, plain: dict[tuple[str, int], str], clients: list[Client], num_killed: int) -> None:
    """Each answer is whole, or is the beginning of the whole one with an error after it."""
    assert not [wrong for client in clients for wrong in client.wrong]
    answers = [answer for client in clients for answer in client.answers]
    broken = [each for each in answers if each[3] is not None]
    for question, text, _, error in answers:
        if error is None:
            assert text == plain[question], question
        else:
            assert "engine failed" in error
            assert plain[question].startswith(text) and text != plain[question], question
    assert len(answers) - len(broken) > NUM_CLIENTS
    assert len(broken) <= NUM_SEQS * num_killed, "what was in no batch was lost"
    deadline_s = time.monotonic() + START_S
    while (values := figures(server)) and (
        summed(values, "vllm:kv_cache_usage_perc") or summed(values, "sundog:engine_up") < 2
    ):
        assert time.monotonic() < deadline_s, values
        time.sleep(0.05)
    assert summed(values, "vllm:num_requests_running") == summed(values, "vllm:num_requests_waiting") == 0
    assert summed(values, "sundog:engine_up") == 2
    assert summed(values, "sundog:engine_restarts_total") == num_killed
    ended = {reason: ends(values, reason) for reason in ("length", "error", "stop", "abort")}
    whole = len(answers) - len(broken) + len(plain)
    assert ended == {"length": whole, "error": len(broken), "stop": 0, "abort": 0}
    said = "".join(server.said)
    assert said.count("was killed by SIGKILL (signal 9)") == num_killed and "Traceback" not in said, said


def ends(values: dict[str, float], reason: str) -> float:
    """How many requests ended so."""
    marked = f'finished_reason="{reason}"'
    return sum(
        v for key, v in values.items() if key.startswith("vllm:request_success_total") and marked in key
    )


@pytest.mark.long(reason="kills engines again and again; test_processes.py kills one")
def test_engines_killed_under_load_lose_nothing_that_had_not_begun() -> None:
    """Two rounds; `--rare` has ten."""
    kill_under_load(2, seed=1)


@pytest.mark.long(rare=True, reason="kills engines for minutes")
@pytest.mark.parametrize("seed", [2, 3])
def test_engines_killed_ten_times_under_load_lose_nothing_that_had_not_begun(seed: int) -> None:
    """One of them, or both at a time, whenever: no replica is dead in the end."""
    kill_under_load(12, seed)
