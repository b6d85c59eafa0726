"""The trial of grammars in a process of its own, so that one that hangs, crashes or eats memory does no harm.

The process starts with the first grammar (0.1 s), serves one after another, and ends with this one.
"""

import json
import select
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from dataclasses import asdict

from actors.core.params.sampling import Constraint
from runtime.structured.limits import MOST_COMPILE_S, one_line


class GrammarError(ValueError):
    """A constraint that no answer is held to, with the reason."""


class Trial:
    """Turns constraints into grammars that are known to compile. Blocks: call it from a thread."""

    def __init__(self, most_s: float = MOST_COMPILE_S) -> None:
        self._most_s = most_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def grammar(self, constraint: Constraint, special_tokens: frozenset[str]) -> str:
        """The library's text for it; raises GrammarError."""
        asked = {
            **asdict(constraint),
            "kind": constraint.kind.value,
            "special_tokens": sorted(special_tokens),
        }
        with self._lock:
            answer = self._ask(json.dumps(asked))
        if "error" in answer:
            raise GrammarError(one_line(answer["error"]))
        return answer["grammar"]

    def close(self) -> None:
        """End the process, if it runs."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)

    def _ask(self, line: str) -> dict[str, str]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = _start(self)
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            ready = select.select([process.stdout], [], [], self._most_s)[0]
            if not ready:
                self.close()
                raise GrammarError(f"it takes more than {self._most_s:g} s to compile: make it smaller")
            reply = process.stdout.readline()
        except BrokenPipeError:
            reply = ""
        if not reply:
            self.close()
            raise GrammarError("it is too deep or too large to compile: make it smaller")
        answer: dict[str, str] = json.loads(reply)
        return answer


def _start(owner: Trial) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "runtime.structured.child"],
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
