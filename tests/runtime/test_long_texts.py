"""Long texts are tokenized in a separate process: same result, within limits, ended with the server."""

import signal
import subprocess
import sys
import threading
import time

import psutil  # type: ignore[import-untyped]  # ships no types
import pytest

from sundog.actors.front.codec import TooManyTokens
from sundog.runtime.serve import EMBEDDED_MODEL
from sundog.runtime.text import tokenizer as tokenizers
from sundog.runtime.text.apart import LONG, MOST_CPU_S, MOST_S, Apart, TextError
from sundog.runtime.text.tokenizer import Tokenizer
from tests.live import Live, live
from tests.patience import STOP_S

CHILD = "sundog.runtime.text.child"


def texts() -> dict[str, str]:
    """Texts just long enough, of several kinds."""
    return {"words": "Once upon a time, ", "spaces": " ", "others": "é日🌞\n"}


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("kind", texts())
def test_a_long_text_has_the_tokens_that_it_has_in_place(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    piece = texts()[kind]
    text = piece * (LONG // len(piece) + 1)
    tokenizer = Tokenizer(EMBEDDED_MODEL)
    apart = tokenizer.encode(text), tokenizer.encode_plain(text)
    monkeypatch.setattr(tokenizers, "LONG", 2**40)
    assert apart == (tokenizer.encode(text), tokenizer.encode_plain(text))


@pytest.mark.long(reason="computes many steps of a model", moderate=True)
def test_a_long_text_that_takes_too_long_or_has_no_tokens_is_refused() -> None:
    """And too many tokens are counted before a list of them is made."""
    source = Tokenizer(EMBEDDED_MODEL).to_json()
    with pytest.raises(TextError, match="too long"):
        Apart(lambda: source, most_s=0.0).encode("a" * LONG, None, add_special_tokens=True)
    with pytest.raises(TextError, match="too long"):
        Apart(lambda: "no tokenizer").encode("a", None, add_special_tokens=True)
    with pytest.raises(TooManyTokens) as many:
        Apart(lambda: source).encode("Once upon a time", 1, add_special_tokens=True)
    assert many.value.num_tokens > 1


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_process_that_tokenises_ends_with_the_one_that_waits_for_it() -> None:
    """However that one ends."""
    code = (
        "from sundog.runtime.serve import EMBEDDED_MODEL\n"
        "from sundog.runtime.text.tokenizer import Tokenizer\n"
        "Tokenizer(EMBEDDED_MODEL).encode('a' * 15_000_000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as waiting:
        child = tokenising(psutil.Process(waiting.pid))
        waiting.kill()
    psutil.wait_procs([child], timeout=STOP_S)
    assert not child.is_running()


def tokenising(process: psutil.Process) -> psutil.Process:
    """The process below this one that tokenises, once there is one."""
    deadline_s = time.monotonic() + STOP_S
    while time.monotonic() < deadline_s:
        for each in process.children(recursive=True):
            try:
                if CHILD in each.cmdline():
                    return each
            except psutil.Error:
                continue
        time.sleep(0.005)
    raise AssertionError("no process tokenises")


@pytest.mark.long(reason="computes many steps of a model", moderate=True)
@pytest.mark.wall_clock
def test_sigterm_while_a_long_text_is_tokenised_ends_the_server() -> None:
    """Law 2 through the door: long before the process's own bound, and no process is left."""
    with live("sundog", "serve", "--port", "0", "--grace", "1") as server:
        client = threading.Thread(target=_send, args=(server,), daemon=True)
        client.start()
        child = tokenising(psutil.Process(server.process.pid))
        while child.rlimit(psutil.RLIMIT_CPU)[0] != MOST_CPU_S:  # bound to the server, and about to begin
            time.sleep(0.005)
        child.send_signal(signal.SIGSTOP)  # it would never end by itself
        asked_s = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - asked_s < MOST_S / 2
        psutil.wait_procs([child], timeout=STOP_S)
        assert not child.is_running()


def _send(server: Live) -> None:
    try:
        server.complete("a " * 2_000_000, max_tokens=1, truncate_prompt_tokens=10)
    except Exception:  # noqa: BLE001  # its connection is cut
        return
