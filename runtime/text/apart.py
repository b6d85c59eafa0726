"""Tokenizing of long texts in a process of its own, which can be ended and returns its memory.

15 million characters take 10 s of CPU and 2 GB, and a library in native code cannot be stopped. A process
costs 0.2 s, and a second for a tokenizer of 150,000 tokens; a text of LONG characters takes 0.6 s by itself.
Shorter ones are tokenized in place, since a process would cost more.
"""

import os
import subprocess
import threading
from array import array
from collections.abc import Callable
from contextlib import suppress

from sundog.actors.front.codec import TooManyTokens
from sundog.actors.front.foreign import ForeignFailure
from sundog.runtime.host.python import module_command

LONG = 2**20
"""Characters from which a text is tokenized in a process of its own."""
MOST_S = 60.0
"""Seconds of real time for one text, after which the process is ended."""
MOST_CPU_S = 30
"""Seconds of CPU time for one text: three times what the largest body takes."""
MOST_BYTES = 2**32
"""Address space of the process in bytes."""
PIECE = 2**16
"""Tokens converted to a list at a time, a few milliseconds' work."""
WORD = "I"
"""Array type of a token."""


class TextError(ValueError):
    """Text that exceeds the bounds on tokenizing."""


class Apart:
    """Tokenizer of one text, in a process that ends with it. Blocks: call it from a thread.

    `tokenizer` returns tokenizer.json's text.
    """

    def __init__(self, tokenizer: Callable[[], str], most_s: float = MOST_S) -> None:
        self._tokenizer = tokenizer
        self._most_s = most_s

    def encode(self, text: str, most_tokens: int | None, *, add_special_tokens: bool) -> list[int]:
        """Return at most `most_tokens` tokens; raises TextError, ForeignFailure and TooManyTokens."""
        tokenizer, data = self._tokenizer().encode(), text.encode()
        head = f"{len(tokenizer)} {len(data)} {int(add_special_tokens)}\n".encode()
        process = subprocess.Popen(
            module_command("sundog.runtime.text.child", str(os.getpid())),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
        )
        assert process.stdin is not None and process.stdout is not None
        timer = threading.Timer(self._most_s, process.kill)
        timer.daemon = True
        timer.start()
        with process, process.stdout:
            try:
                process.stdin.write(head + tokenizer + data)
                process.stdin.flush()
                reply = process.stdout.read()
            except BrokenPipeError:
                reply = b""
            finally:
                timer.cancel()
                process.kill()
                with suppress(BrokenPipeError):
                    process.stdin.close()
        return _tokens(reply, most_tokens)


def _tokens(reply: bytes, most_tokens: int | None) -> list[int]:
    word, _, rest = reply.partition(b"\n")
    if word == b"failed":
        raise ForeignFailure(rest.decode())
    if word != b"ok":
        raise TextError("it takes too long, or too much memory, to tokenise: send a shorter text")
    num_tokens = len(rest) // array(WORD).itemsize
    if most_tokens is not None and num_tokens > most_tokens:
        raise TooManyTokens(num_tokens)
    tokens: list[int] = []
    words = array(WORD)
    words.frombytes(rest)
    for at in range(0, num_tokens, PIECE):
        tokens += words[at : at + PIECE].tolist()
    return tokens
