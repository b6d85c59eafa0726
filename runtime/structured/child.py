"""Process in which grammars are tried: one line of JSON in, one line of JSON out, until its input ends.

A schema may take minutes to compile, all memory, or more stack than there is, and a compiler in native code
cannot be stopped. Here it can: the parent process ends this one (`trial`). The first line holds the
tokenizer. A trial does everything that an engine does before a first token: the matcher, and its first mask.
"""

import ctypes
import json
import re
import resource
import signal
import sys
import threading
import time
from contextlib import suppress

import llguidance
import numpy as np

from sundog.actors.core.params.sampling import Constraint, ConstraintKind
from sundog.runtime.structured.limits import (
    MOST_COMPILE_CPU_S,
    MOST_GRAMMAR_BYTES,
    STACK_BYTES,
    TRIAL_BYTES,
    limits,
    one_line,
)
from sundog.runtime.structured.text import grammar_of

MOST_FRAMES = 20_000
"""Deepest schema: as deep as JSON that can be read."""
PLACE = re.compile(
    r'at \d+\(\d+\): (?:failed to compile JSON schema: |invalid regex ".*" \(in regex\): )?', re.S
)
"""Pattern of the place of an error in the text of a grammar, as the library reports it."""


def main() -> None:
    """Answer each line of the input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this process
    resource.setrlimit(resource.RLIMIT_AS, (TRIAL_BYTES, TRIAL_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(STACK_BYTES)
    sys.setrecursionlimit(MOST_FRAMES)
    worker = threading.Thread(target=_answer_all)
    worker.start()
    worker.join()


def _answer_all() -> None:
    first = json.loads(sys.stdin.readline())
    tokenizer = llguidance.LLTokenizer(first["tokenizer"], eos_token=first["eos_token_id"])
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line), tokenizer)), flush=True)


def _answer(asked: dict[str, object], tokenizer: llguidance.LLTokenizer) -> dict[str, object]:
    try:
        kind = ConstraintKind(asked.pop("kind"))
        special_tokens = frozenset(asked.pop("special_tokens"))  # type: ignore[call-overload]  # JSON is untyped
        grammar = grammar_of(Constraint(kind, **asked), special_tokens)  # type: ignore[arg-type]  # as above
    except (ValueError, TypeError, RecursionError) as error:
        return {"error": one_line(str(error))}
    reason = llguidance.LLMatcher.validate_grammar(grammar, None, limits=limits())
    if reason and not reason.startswith("WARNING"):
        return {
            "error": one_line(reason if kind is ConstraintKind.GRAMMAR else PLACE.sub("", reason, count=1))
        }
    return _compiled(grammar, tokenizer)


def _compiled(grammar: str, tokenizer: llguidance.LLTokenizer) -> dict[str, object]:
    before_bytes, begin_s = _used_bytes(), time.thread_time()
    matcher = first_masked(llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits()), tokenizer)
    cpu_s, num_bytes = time.thread_time() - begin_s, max(0, _used_bytes() - before_bytes)
    if reason := matcher.get_error():
        return {"error": one_line(reason)}
    if cpu_s > MOST_COMPILE_CPU_S:
        return {"error": f"it takes {cpu_s:.1f} s to compile, at most {MOST_COMPILE_CPU_S:g} are allowed"}
    if num_bytes > MOST_GRAMMAR_BYTES:
        most = f"at most {MOST_GRAMMAR_BYTES >> 20} are allowed"
        return {"error": f"it takes {num_bytes >> 20} MB of memory compiled, {most}"}
    return {"grammar": grammar, "num_bytes": num_bytes}


def first_masked(matcher: llguidance.LLMatcher, tokenizer: llguidance.LLTokenizer) -> llguidance.LLMatcher:
    """Compute the first mask of a matcher, which finds impossible grammars; copies of the matcher share
    it.
    """
    if not matcher.is_error():
        word_W = np.zeros(-(-tokenizer.vocab_size // 32), np.int32)
        with suppress(ValueError):  # then the matcher holds the error
            matcher.unsafe_compute_mask_ptr(word_W.ctypes.data, word_W.nbytes)
    return matcher


class _Allocated(ctypes.Structure):
    _fields_ = [  # declared so by ctypes
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def _used_bytes() -> int:
    """Return the used memory of the C heap, where grammars lie; 0 if unknown."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except AttributeError:  # another C library than glibc 2.33 and later
        return 0
    mallinfo2.restype = _Allocated
    found = mallinfo2()
    return int(found.uordblks) + int(found.hblkhd)


if __name__ == "__main__":
    main()
