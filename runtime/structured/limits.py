"""Limits on the size of a grammar, and on the time of everything that uses it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLParserLimits

MOST_JSON_CHARACTERS = 2**17
MOST_CHARACTERS = 2**15
"""Most characters of any constraint but JSON: converting this much EBNF takes a second."""
MOST_COMPILE_S = 5.0
"""Seconds of real time of a trial, after which the process is ended."""
MOST_COMPILE_CPU_S = 2.0
"""Seconds of CPU time of an accepted compilation: an engine compiles once more, inside a step."""
START_S = 60.0
"""Seconds of real time for the trial process to read the tokenizer."""
TRIAL_BYTES = 3 * 2**30
"""Address space, in bytes, of the trial process; 0.6 GB of it is the stack."""
MOST_GRAMMAR_BYTES = 2**27
"""Bytes of one compiled grammar, its first mask included."""
MOST_KEPT_BYTES = 2**29
"""Bytes of all compiled grammars that a process keeps."""
STACK_BYTES = 2**29
"""Bytes of stack: the compiler recurses along references; a chain of 1,000 overflows 8 MiB, one of 10,000
fits here.
"""
MOST_ROW_ITEMS = 2**15
"""Maximum number of rules that may apply at one position, as with words that begin alike. With the library's
limit of 2,000 such an answer ended early; its limit of 50,000 on all items of a step still applies.
"""
MOST_ERROR_CHARACTERS = 300


def limits() -> "LLParserLimits":
    """Return the library's limits on compiling and on one step, without the request's text in its errors."""
    from llguidance import LLParserLimits

    return LLParserLimits(verbose_errors=False, max_items_in_row=MOST_ROW_ITEMS)


def one_line(reason: str) -> str:
    """Return the library's reason in one line, short enough for a client."""
    if reason.startswith("NoExtension"):
        return "nothing matches it"
    lines = [line.strip() for line in reason.splitlines() if line.strip()] or ["no reason is given"]
    # A parser's errors quote the text line by line, and say what is wrong with it below.
    told = [line for line in lines[1:] if line.startswith("error: ")]
    return " ".join([lines[0], *told])[:MOST_ERROR_CHARACTERS]
