"""Trial of grammars in a process of its own, so that one that hangs, crashes or exhausts memory does no harm.

The process starts with the first grammar (0.2 s, and a second for a tokenizer of 150,000 tokens), serves one
after another, and ends with this one. A grammar that passes was compiled as engines compile it, within the
bounds of `limits`.
"""

import json
import select
import subprocess
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass

from sundog.actors.core.params.sampling import Constraint
from sundog.runtime.host.python import module_command
from sundog.runtime.structured.limits import MOST_COMPILE_S, START_S, one_line


class GrammarError(ValueError):
    """Constraint that is not supported, with the reason."""


@dataclass(frozen=True, slots=True)
class TriedGrammar:
    """Grammar that compiled: its text for the library, and its memory in bytes."""

    text: str
    num_bytes: int


class Trial:
    """Converts constraints to tested grammars. Blocks: call it from a thread.

    `tokenizer` returns tokenizer.json's text; `eos_token_id` ends an answer.
    """

    def __init__(
        self, tokenizer: Callable[[], str], eos_token_id: int, most_s: float = MOST_COMPILE_S
    ) -> None:
        self._tokenizer = tokenizer
        self._eos_token_id = eos_token_id
        self._most_s = most_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def grammar(self, constraint: Constraint, special_tokens: frozenset[str]) -> TriedGrammar:
        """Return the grammar of a constraint; raises GrammarError unless it compiles within the bounds."""
        asked = {
            **asdict(constraint),
            "kind": constraint.kind.value,
            "special_tokens": sorted(special_tokens),
        }
        with self._lock:
            answer = self._ask(json.dumps(asked))
        if "error" in answer:
            raise GrammarError(one_line(str(answer["error"])))
        return TriedGrammar(str(answer["grammar"]), int(str(answer["num_bytes"])))

    def close(self) -> None:
        """End the process, if it runs."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)

    def _ask(self, line: str) -> dict[str, object]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = _start(self)
            first = {"tokenizer": self._tokenizer(), "eos_token_id": self._eos_token_id}
            self._exchange(json.dumps(first), START_S, "this model's tokenizer is not supported")
        return self._exchange(line, self._most_s, "it is too deep or too large to compile: make it smaller")

    def _exchange(self, line: str, most_s: float, if_ended: str) -> dict[str, object]:
        """Send a line and return the reply; GrammarError after a timeout or if the process ends."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            ready = select.select([process.stdout], [], [], most_s)[0]
            if not ready:
                self.close()
                raise GrammarError(f"it takes more than {most_s:g} s to compile: make it smaller")
            reply = process.stdout.readline()
        except BrokenPipeError:
            reply = ""
        if not reply:
            self.close()
            raise GrammarError(if_ended)
        answer: dict[str, object] = json.loads(reply)
        return answer


def _start(owner: Trial) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        module_command("sundog.runtime.structured.child"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    weakref.finalize(owner, _end, process)
    return process


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # what was written last went nowhere
                pipe.close()
