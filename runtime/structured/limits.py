"""Limits on the size of a grammar, and on the time that anything about it may take."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLParserLimits

MOST_JSON_CHARACTERS = 2**17
MOST_CHARACTERS = 2**15
"""The most characters of anything but JSON: converting this much EBNF takes a second."""
MOST_COMPILE_S = 5.0
"""Wall time of a trial; the process is ended then."""
MOST_COMPILE_CPU_S = 2.0
"""CPU time of a compilation that is accepted: an engine compiles once more, inside a step."""
START_S = 60.0
"""Wall time in which the process that tries grammars must have read the tokenizer."""
TRIAL_BYTES = 3 * 2**30
"""The address space, in bytes, of the process that tries grammars; 0.6 GB of it is the stack."""
MOST_GRAMMAR_BYTES = 2**27
"""Memory of one compiled grammar, its first mask included."""
MOST_KEPT_BYTES = 2**29
"""Memory of all compiled grammars that a process keeps."""
STACK_BYTES = 2**29
"""The compiler recurses along references: a chain of 1,000 overflows 8 MiB, one of 10,000 fits here."""
MOST_ROW_ITEMS = 2**15
"""The most rules that go on at one place: of many words, those that begin alike. At the library's bound of
2,000 such an answer ended on the way; that of 50,000 on all items of a step holds as well."""
MOST_ERROR_CHARACTERS = 300


def limits() -> "LLParserLimits":
    """The library's own bounds on compiling and on one step, without the request's text in its errors."""
    from llguidance import LLParserLimits

    return LLParserLimits(verbose_errors=False, max_items_in_row=MOST_ROW_ITEMS)


def one_line(reason: str) -> str:
    """The library's reason in one line, short enough for a client."""
    if reason.startswith("NoExtension"):
        return "nothing matches it"
    lines = [line.strip() for line in reason.splitlines() if line.strip()] or ["no reason is given"]
    # A parser's errors quote the text line by line, and say what is wrong with it below.
    told = [line for line in lines[1:] if line.startswith("error: ")]
    return " ".join([lines[0], *told])[:MOST_ERROR_CHARACTERS]
