"""Long texts are tokenised in a process of their own, which can be ended and returns its memory.

15 million characters take 10 s of CPU and 2 GB, and a library in native code cannot be stopped. A process
costs 0.2 s, and a second for a tokenizer of 150,000 tokens; a text of LONG characters takes 0.6 s by itself.
Shorter ones are tokenised in place: a process for each would cost more than the text.
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
"""Characters from which a text is tokenised apart."""
MOST_S = 60.0
"""Wall time of one text; the process is ended then."""
MOST_CPU_S = 30
"""CPU time of one text: three times what the largest body takes."""
MOST_BYTES = 2**32
"""Address space of the process."""
PIECE = 2**16
"""Tokens that become a list in one go: a few milliseconds."""
WORD = "I"
"""The array type of a token."""


class TextError(ValueError):
    """A text that takes more to tokenise than the bounds allow."""


class Apart:
    """Tokenises one text, in a process that ends with it. Blocks: call it from a thread.

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
