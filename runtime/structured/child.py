"""The process in which grammars are tried: one line of JSON in, one line of JSON out, until its input ends.

A schema may take minutes to compile, all memory, or more stack than there is, and a compiler in native code
cannot be stopped. Here it can: the process that waits for this one ends it (`trial`).
"""

import json
import re
import resource
import signal
import sys
import threading

import llguidance

from actors.core.params.sampling import Constraint, ConstraintKind
from runtime.structured.limits import STACK_BYTES, TRIAL_BYTES, limits, one_line
from runtime.structured.text import grammar_of

MOST_FRAMES = 20_000
"""A schema may be as deep as JSON that can be read."""
PLACE = re.compile(
    r'at \d+\(\d+\): (?:failed to compile JSON schema: |invalid regex ".*" \(in regex\): )?', re.S
)
"""The place of an error in the library's text of a grammar."""


def main() -> None:
    """Answer every line of the input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this process
    resource.setrlimit(resource.RLIMIT_AS, (TRIAL_BYTES, TRIAL_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(STACK_BYTES)
    sys.setrecursionlimit(MOST_FRAMES)
    worker = threading.Thread(target=_answer_all)
    worker.start()
    worker.join()


def _answer_all() -> None:
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), flush=True)


def _answer(asked: dict[str, object]) -> dict[str, str]:
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
    return {"grammar": grammar}


if __name__ == "__main__":
    main()
