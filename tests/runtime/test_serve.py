"""`sundog serve` in a process of its own, used by clients and operators."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import openai
import psutil
import pytest

pytest.importorskip("torch", reason="the engine extra is not installed")

from tests.live import Live, Process, live
from tests.patience import START_S, STOP_S
from tests.processes import is_there


@dataclass
class Server:
    """A server, and a client of it."""

    live: Live
    client: openai.OpenAI

    @property
    def process(self) -> Process:
        return self.live.process

    @property
    def url(self) -> str:
        return self.live.url

    def stop(self) -> int:
        return self.live.stop()


@contextmanager
def sundog_serve(*arguments: str) -> Iterator[Server]:
    """A server on a free port; whatever happens, its process ends."""
    command = "emulate" if "--gpu" in arguments else "serve"
    with live("sundog", command, "--port", "0", *arguments) as running:
        url = f"{running.url}/v1"
        with openai.OpenAI(base_url=url, api_key="secret", max_retries=0) as client:
            yield Server(running, client)


@pytest.fixture(scope="module")
def served() -> Iterator[Server]:
    with sundog_serve("--api-key", "secret") as server:
        yield server


def chat(client: openai.OpenAI, question: str, **options: object) -> str:
    answer = client.chat.completions.create(
        model="sundog-tiny",
        messages=[{"role": "user", "content": question}],
        temperature=0,
        **options,  # type: ignore[arg-type]
    )
    return answer.choices[0].message.content or ""


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_the_embedded_model_answers_fluently(served: Server) -> None:
    """The same greedy answer twice, the second with its prompt's blocks in the prefix cache."""
    question = "Tell me a story about a fox. " + "It should be a good story. " * 2
    first = chat(served.client, question, max_tokens=60)
    assert first == chat(served.client, question, max_tokens=60)
    assert len(first.split()) > 20 and first.isprintable()


def test_a_stream_says_what_the_whole_answer_says(served: Server) -> None:
    """The deltas add up, and usage comes at the end when asked for."""
    question = "What is Sundog?"
    whole = chat(served.client, question, max_tokens=40)
    stream = served.client.chat.completions.create(
        model="sundog-tiny",
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole
    assert chunks[-1].usage is not None and chunks[-1].usage.prompt_tokens > 0


def test_a_seed_repeats_and_its_absence_varies(served: Server) -> None:
    """Sampling at temperature 1 is the request's own stream."""

    def story(seed: int | None) -> str:
        completion = served.client.completions.create(
            model="sundog-tiny", prompt="Once upon a time", max_tokens=24, temperature=1, seed=seed
        )
        return completion.choices[0].text

    assert story(1) == story(1)
    assert len({story(None) for _ in range(4)}) > 1


def test_a_stop_string_ends_the_answer_and_is_not_shown(served: Server) -> None:
    """The text ends before it, and finish_reason says stop."""
    completion = served.client.completions.create(
        model="sundog-tiny", prompt="Once upon a time", max_tokens=80, temperature=0, stop=["."]
    )
    choice = completion.choices[0]
    assert choice.finish_reason == "stop" and "." not in choice.text and choice.text


def test_min_tokens_is_reached_while_another_stream_goes_on(served: Server) -> None:
    """An answer that would end with its first token has at least `min_tokens`; the stream notices nothing."""
    stream = served.client.completions.create(
        model="sundog-tiny",
        prompt="Once upon a time",
        max_tokens=150,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(stream)
    for temperature in (0, 1):
        for min_tokens in (0, 4):
            answer = served.client.completions.create(
                model="sundog-tiny",
                prompt="Once upon a time",
                max_tokens=12,
                temperature=temperature,
                seed=3,
                extra_body={"min_tokens": min_tokens, "stop_token_ids": list(range(6, 1536))},
            )
            assert answer.usage is not None
            assert answer.usage.completion_tokens >= max(min_tokens, 1)
            if not min_tokens:
                assert answer.usage.completion_tokens == 1
    last = [chunk for chunk in stream if chunk.choices][-1]
    assert last.choices[0].finish_reason == "length"


def test_a_prompt_beyond_the_context_is_a_bad_request(served: Server) -> None:
    """400 in vLLM's shape, naming the field."""
    with pytest.raises(openai.BadRequestError, match="maximum context length|tokens") as caught:
        chat(served.client, "word " * 5000)
    assert str(caught.value.code) == "400" and caught.value.param == "messages"


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_sigterm_finishes_the_running_stream_and_exits_0() -> None:
    """Nothing is cut: the last chunk has a finish_reason, the process ends well, and so do its children."""
    with sundog_serve("--api-key", "secret") as server:
        stream = server.client.completions.create(
            model="sundog-tiny",
            prompt="Once upon a time",
            max_tokens=120,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(stream)
        children = psutil.Process(server.process.pid).children(recursive=True)
        server.process.send_signal(signal.SIGTERM)
        last = [chunk for chunk in stream if chunk.choices][-1]
        assert last.choices[0].finish_reason == "length"
        assert server.process.wait(STOP_S) == 0
        left = psutil.wait_procs(children, timeout=5)[1]  # the first process reaps them, sooner or later
        assert len(children) == 2 and not [each for each in left if is_there(each)]


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_port_in_use_is_one_clear_message() -> None:
    """Exit code 2, before the model is loaded for nothing."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "sundog", "emulate", "--port", port, "--gpu", "h100"],
            capture_output=True,
            text=True,
            timeout=START_S,
        )
    assert done.returncode == 2
    assert "--port" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_emulation_answers_with_canned_text_at_the_pace_of_the_gpu() -> None:
    """The real server in front of a GPU that is not there; SIGTERM ends it."""
    with sundog_serve("--api-key", "secret", "--gpu", "h100", "--model", "qwen3-8b") as server:
        answer = server.client.chat.completions.create(
            model="qwen3-8b", messages=[{"role": "user", "content": "Who are you?"}]
        )
        assert answer.choices[0].finish_reason == "stop"
        assert len(answer.choices[0].message.content or "") > 40
        assert server.stop() == 0
