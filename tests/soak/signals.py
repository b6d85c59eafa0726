"""Kill and stop processes of a loaded server repeatedly: nothing is lost, nothing is sent twice.

`hurt_for` serves the embedded model behind two doors, by two engines or one with two ranks. It sends SIGKILL
or SIGSTOP to one process of the tree after another, fork servers included and the server itself excepted.
Every request must be answered whole, or end with an error that says so; a connection may break only while a
door is hurt.
"""

import json
import os
import random
import signal
import statistics
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]  # ships no types

from tests.live import START_S, Live, live
from tests.soak.manners import left_over

REPLICAS, RANKS = ("--replicas", "2"), ("--tensor-parallel-size", "2")
SERVE = (
    *("sundog", "serve", "--port", "0", "--api-processes", "2", "--max-num-seqs", "4"),
    *("--stall-timeout", "3", "--debug", "--no-log-requests", "--disable-log-stats"),
)
PROMPTS = ("The fox", "Once upon a time there was", "A bird sat")
LENGTHS = (3, 30, 250)
NUM_CLIENTS = 8
SHM = "/dev/shm"


@dataclass(eq=False)
class Client(threading.Thread):
    """Asks one thing after another, streamed or whole, each on a connection of its own."""

    server: Live
    plain: dict[tuple[str, int], str]
    seed: int
    enough: threading.Event
    outcomes: Counter[str] = field(default_factory=Counter)
    cut_s: list[float] = field(default_factory=list)
    """When connections broke."""
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def run(self) -> None:
        rng = random.Random(self.seed)
        while not self.enough.is_set():
            question = rng.choice(PROMPTS), rng.choice(LENGTHS)
            ask = self._stream if rng.random() < 0.5 else self._whole
            try:
                self.outcomes[ask(*question)] += 1
            except httpx.TimeoutException:
                self.wrong.append(f"{question} has no end")
            except httpx.TransportError:
                self.outcomes["cut"] += 1
                self.cut_s.append(time.monotonic())
                time.sleep(0.05)

    def _whole(self, prompt: str, max_tokens: int) -> str:
        url = f"{self.server.url}/v1/completions"
        answer = httpx.post(url, json=asked(prompt, max_tokens), timeout=START_S)
        if answer.status_code != 200:
            return self._refused(answer)
        if answer.json()["choices"][0]["text"] != self.plain[prompt, max_tokens]:
            self.wrong.append(f"{prompt!r} is answered with {answer.text}")
        return "whole"

    def _stream(self, prompt: str, max_tokens: int) -> str:
        body = asked(prompt, max_tokens) | {"stream": True}
        with httpx.stream("POST", f"{self.server.url}/v1/completions", json=body, timeout=START_S) as answer:
            if answer.status_code != 200:
                answer.read()
                return self._refused(answer)
            said = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
        events = [json.loads(event) for event in said if event != "[DONE]"]
        text = "".join(event["choices"][0]["text"] for event in events if "choices" in event)
        errors = [event for event in events if "error" in event]
        plain = self.plain[prompt, max_tokens]
        if said[-1:] != ["[DONE]"]:
            self.wrong.append(f"a stream ends with {said[-2:]}")
        if not (plain.startswith(text) if errors else text == plain):
            self.wrong.append(f"{prompt!r} is answered with {text!r}")
        return "error event" if errors else "whole"

    def _refused(self, answer: httpx.Response) -> str:
        if answer.status_code not in (500, 503):
            self.wrong.append(f"{answer.status_code}: {answer.text}")
        time.sleep(0.05)
        return str(answer.status_code)


@dataclass
class Report:
    """The seconds from each signal until all was back, by process, and the outcomes of the requests."""

    recovery_s: dict[str, list[float]] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        lines = [f"requests: {dict(sorted(self.outcomes.items()))}", "recovery, s: median, p99, longest"]
        everything = [time_s for times in self.recovery_s.values() for time_s in times]
        for name, times in (*sorted(self.recovery_s.items()), ("all", everything)):
            ranked = sorted(times)
            p99 = ranked[min(len(ranked) - 1, int(0.99 * len(ranked)))]
            row = f"{statistics.median(ranked):.2f} {p99:.2f} {ranked[-1]:.2f}"
            lines.append(f"  {name} ({len(ranked)}): {row}")
        return "\n".join(lines)


def asked(prompt: str, max_tokens: int) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}


def hurt_for(seconds: float, every_s: float, engines: tuple[str, ...] = REPLICAS, seed: int = 1) -> Report:
    """Serve under load for so long, and hurt a process each `every_s`, or when the one before is back."""
    report, rng = Report(), random.Random(seed)
    shared = set(os.listdir(SHM)) if os.path.isdir(SHM) else set()
    seen: set[psutil.Process] = set()
    with live(*SERVE, *engines) as server:
        plain = {
            (prompt, length): server.complete(**asked(prompt, length)).json()["choices"][0]["text"]
            for prompt in PROMPTS
            for length in LENGTHS
        }
        enough = threading.Event()
        clients = [Client(server, plain, seed + number, enough) for number in range(NUM_CLIENTS)]
        for client in clients:
            client.start()
        doors_hurt = _hurt(server, rng, seconds, every_s, report, seen)
        enough.set()
        for client in clients:
            client.join(2 * START_S)
            report.outcomes += client.outcomes
            assert not client.is_alive(), "a request has no end"
            assert not client.wrong, client.wrong
            for cut_s in client.cut_s:
                assert any(begin <= cut_s <= end for begin, end in doors_hurt), "a connection broke by itself"
        _judge(server, report.outcomes, len(plain))
        seen |= {*psutil.Process(server.process.pid).children(recursive=True)}
        assert server.stop() == 0
    psutil.wait_procs(seen, timeout=START_S)
    assert not [each for each in seen if each.is_running()], "a process outlives the server"
    if os.path.isdir(SHM):
        assert not set(os.listdir(SHM)) - shared, "something is left in /dev/shm"
    return report


def _hurt(
    server: Live,
    rng: random.Random,
    seconds: float,
    every_s: float,
    report: Report,
    seen: set[psutil.Process],
) -> list[tuple[float, float]]:
    """Send the signals; returns between which times doors were hurt."""
    end_s, doors_hurt = time.monotonic() + seconds, []
    all_names = sorted({each.name() for each in server.below("sundog")})
    while time.monotonic() < end_s:
        next_s = time.monotonic() + every_s
        name, number = rng.choice(all_names), rng.choice([signal.SIGKILL, signal.SIGSTOP])
        seen |= {*psutil.Process(server.process.pid).children(recursive=True)}
        hurt = next(each for each in server.below(name) if each.name() == name)
        begin_s = time.monotonic()
        hurt.send_signal(number)
        _until_back(server, hurt, name)
        took_s = time.monotonic() - begin_s
        report.recovery_s.setdefault(f"{name}, {number.name}", []).append(took_s)
        print(f"{number.name} to {name}: back after {took_s:.2f} s", flush=True)
        if name.startswith("sundog door "):
            doors_hurt.append((begin_s, time.monotonic() + 1))
        time.sleep(max(0.0, next_s - time.monotonic()))
    return doors_hurt


def _until_back(server: Live, hurt: psutil.Process, name: str) -> None:
    """Wait until another process has the name of the one that was hurt, and the server is healthy."""
    deadline_s = time.monotonic() + START_S
    while True:
        assert server.process.poll() is None, f"the server has ended: {server.said}"
        names = set()
        for each in psutil.Process(server.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if each != hurt:
                    names.add(each.name())
        try:
            if name in names and server.health().json() == {"status": "ok"}:
                return
        except (httpx.TransportError, ValueError):
            pass  # it went to the door that is hurt
        assert time.monotonic() < deadline_s, f"{name} is not back: there are {sorted(names)}"
        time.sleep(0.02)


def _judge(server: Live, outcomes: Counter[str], num_before: int) -> None:
    """The server has counted every answer once, and holds nothing."""
    deadline_s = time.monotonic() + START_S
    while left := left_over(server.url):
        assert time.monotonic() < deadline_s, left
        time.sleep(0.1)
    num_counted = 0.0
    for line in httpx.get(f"{server.url}/metrics", timeout=START_S).text.splitlines():
        if line.startswith("vllm:request_success_total") and 'finished_reason="length"' in line:
            num_counted += float(line.rpartition(" ")[2])
    # An answer whose connection broke may have been whole.
    num_extra = num_counted - outcomes["whole"] - num_before
    assert 0 <= num_extra <= outcomes["cut"], (num_counted, outcomes)
    server.assert_sound()
