"""First use: starting a server, opening its URL in a browser, chatting in the terminal."""

import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from sundog.builds.start_report import in_words
from sundog.commands.chat import Shown
from sundog.runtime.load.conversation import AnswerPart
from tests.live import EMULATED, Live, live
from tests.patience import HANGS_S
from tests.sundog.test_runs import refused, sundog


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(*EMULATED) as found:
        yield found


def test_a_start_says_what_fits(server: Live) -> None:
    """KV blocks, the longest context, and how many requests of it at once."""
    line = next(line for line in server.said if "KV blocks of" in line)
    assert line.startswith("qwen3-8b: on h100, simulated; ")
    assert "contexts up to 40,960 tokens" in line and "of that length at once" in line


@pytest.mark.parametrize(
    ("count", "words"),
    [(2_750_000, "2.75 million"), (596_049_920, "596 million"), (8_030_261_248, "8.03 billion")],
)
def test_parameters_are_counted_as_people_say_them(count: int, words: str) -> None:
    """In three digits."""
    assert in_words(count) == words


def test_the_url_says_what_it_is(server: Live) -> None:
    """To browsers as a page with links, to programs as JSON; every link leads somewhere."""
    page = httpx.get(server.url, headers={"Accept": "text/html,*/*"})
    assert page.headers["content-type"].startswith("text/html")
    assert "qwen3-8b" in page.text and f"sundog chat {server.url}" in page.text
    known = httpx.get(server.url).json()
    assert known["model"] == "qwen3-8b"
    for path in known["links"]:
        assert f'href="{path}"' in page.text
        with httpx.stream("GET", f"{server.url}{path}") as answer:
            assert answer.status_code == 200, path


def test_a_port_in_use_names_its_process() -> None:
    """By number and command: this one."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused(sundog("serve", "--port", port), f"port {port}", f"process {os.getpid()} has it", "python")


def ask(url: str, text: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "sundog", "chat", url, "--max-tokens", "12"]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=HANGS_S)


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_a_question_from_a_pipe_is_answered_on_stdout(server: Live) -> None:
    """Nothing else is printed; and what cannot be asked is one line."""
    done = ask(server.url, "Hello?\n")
    assert done.returncode == 0 and done.stderr == "" and len(done.stdout) > 10
    for url, text, words in (
        (server.url, " \n", "stdin is empty"),
        ("http://127.0.0.1:1", "Hello?", "Connection refused"),
    ):
        done = ask(url, text)
        assert (done.returncode, done.stdout) == (2, "")
        assert words in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("at_terminal", [True, False])
def test_reasoning_is_faint_or_beside_the_answer(
    at_terminal: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stdout are the answer's own words; neither can steer the terminal."""
    shown = Shown(at_terminal)
    for part in (
        AnswerPart("I \x1b]0;title\x07think", True),
        AnswerPart(" so.", True),
        AnswerPart("Four\x1b[2J\tor"),
        AnswerPart(" five\n"),
    ):
        shown.show(part)
    out, err = capsys.readouterr()
    if not at_terminal:
        assert (out, err) == ("Four[2J\tor five\n", "I ]0;titlethink so.\n\n")
    else:
        assert err == "" and out.endswith("\n\nFour[2J\tor five\n") and "I ]0;titlethink" in out


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_what_is_no_text_is_refused_before_it_is_asked(server: Live) -> None:
    """By the first byte that is none."""
    command = [sys.executable, "-m", "sundog", "chat", server.url]
    done = subprocess.run(command, input=b"Hell\xff?", capture_output=True, timeout=HANGS_S)
    assert (done.returncode, done.stdout) == (2, b"") and b"not UTF-8 at byte 4" in done.stderr


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_terminal_talks_until_exit() -> None:
    """Ctrl-C stops the answer, or drops a line that is half typed, and the conversation goes on."""
    ours, theirs = pty.openpty()
    with live(*EMULATED, "--step-scale", "30") as server, ExitStack() as stack:
        command = [sys.executable, "-m", "sundog", "chat", server.url]
        process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        stack.callback(process.wait)
        stack.callback(process.kill)
        said = _until(ours, "> ")
        assert "qwen3-8b" in said and "/exit ends" in said
        os.write(ours, b"Tell me a story\n")
        _until(ours, "story\r\n")
        while not httpx.get(f"{server.url}/load").json()["server_load"]:
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(1.0)
        _until(ours, "> ", interrupted=process)
        os.write(ours, b"half a li")
        _until(ours, "half a li")
        assert "drops a line" in _until(ours, "> ", interrupted=process)
        os.write(ours, b"/what\n")
        assert "/reset forgets" in _until(ours, "> ")
        os.write(ours, b"/exit\n")
        assert process.wait(HANGS_S) == 0
    os.close(ours)


def _until(terminal: int, words: str, interrupted: subprocess.Popen[bytes] | None = None) -> str:
    """What the terminal shows until it shows these words, after Ctrl-C in a process if one is given.

    Between two of its looks at the terminal readline sees no signal before the next key: it is sent again.
    """
    said, begin_s = "", time.monotonic()
    while words not in said:
        assert time.monotonic() - begin_s < HANGS_S, said
        if interrupted is not None and not said:
            interrupted.send_signal(signal.SIGINT)
        if select.select([terminal], [], [], 2.0)[0]:
            said += os.read(terminal, 4096).decode()
    return said
