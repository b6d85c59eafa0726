"""Grammars, compiled for one tokenizer and kept: the front checks with them, the backend takes matchers.

Thread-safe. Compiling takes 1 to 5 ms for the schemas of most clients; it never happens on the event loop.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from actors.core.params.sampling import Constraint, ConstraintKind
from runtime.structured.trial import GrammarError, Trial

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MOST_GRAMMARS = 128
MOST_CHARACTERS = 2**20
"""The most characters of all kept grammars together; a compiled one takes up to 250 bytes a character."""
MISSING = "structured output needs llguidance, which is not installed: pip install 'sundog[structured]'"
JSON_KINDS = (ConstraintKind.JSON, ConstraintKind.CHOICE, ConstraintKind.STRUCTURAL_TAG)


class Grammars:
    """The grammars of one model: at most 128, the longest unused is forgotten first.

    `tokenizer` gives tokenizer.json's text, which `prepare` reads, or the first grammar.
    """

    def __init__(self, tokenizer: Callable[[], str], eos_token_ids: Sequence[int]) -> None:
        self._read_tokenizer = tokenizer
        self._eos_token_ids = tuple(eos_token_ids)
        self._tokenizer: LLTokenizer | None = None
        self._special_tokens: frozenset[str] = frozenset()
        self._trial = Trial()
        self._kept: OrderedDict[Constraint, LLMatcher] = OrderedDict()
        self._num_characters = 0
        self._compiling = threading.Lock()
        self._keeping = threading.Lock()

    def prepare(self) -> None:
        """Read the tokenizer now: it takes a second for 150,000 tokens, in which nothing else runs.

        Without the library, or an end token, grammars are refused one by one.
        """
        with self._compiling, suppress(GrammarError, ModuleNotFoundError):
            self._open_tokenizer()

    def knows(self, constraint: Constraint) -> bool:
        """Return True if it is compiled, so that checking it takes no time."""
        return constraint in self._kept

    def check(self, constraint: Constraint) -> None:
        """Compile it unless it is kept; raises GrammarError for one that no answer is held to."""
        self._compiled(constraint)

    def matcher(self, constraint: Constraint) -> "LLMatcher":
        """A new matcher at the beginning of an answer; raises GrammarError. 10 to 600 µs if it is kept."""
        return self._compiled(constraint).deep_copy()

    @property
    def num_words(self) -> int:
        """The length of a mask: words of 32 tokens. Known once a grammar has been compiled."""
        assert self._tokenizer is not None
        return -(-self._tokenizer.vocab_size // 32)

    def _compiled(self, constraint: Constraint) -> "LLMatcher":
        with self._keeping:
            if constraint in self._kept:
                self._kept.move_to_end(constraint)
                return self._kept[constraint]
        with self._compiling:
            matcher = self._compile(constraint)
        with self._keeping:
            if constraint not in self._kept:
                self._kept[constraint] = matcher
                self._num_characters += len(constraint.text)
            while len(self._kept) > MOST_GRAMMARS or self._num_characters > MOST_CHARACTERS:
                forgotten, _ = self._kept.popitem(last=False)
                self._num_characters -= len(forgotten.text)
        return matcher

    def _compile(self, constraint: Constraint) -> "LLMatcher":
        try:
            from llguidance import LLMatcher

            from runtime.structured import limits
        except ModuleNotFoundError:
            raise GrammarError(MISSING) from None
        most = limits.MOST_JSON_CHARACTERS if constraint.kind in JSON_KINDS else limits.MOST_CHARACTERS
        if len(constraint.text) > most:
            raise GrammarError(f"it has {len(constraint.text)} characters; at most {most} are allowed")
        tokenizer = self._open_tokenizer()
        grammar = self._trial.grammar(constraint, self._special_tokens)
        made: list[LLMatcher] = []

        def compile_deep() -> None:
            matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits.limits())
            if not matcher.is_error():
                # The first mask shows what cannot begin, and is then known to all requests.
                word_W = np.zeros(self.num_words, np.int32)
                with suppress(ValueError):  # then the matcher is in error
                    matcher.unsafe_compute_mask_ptr(word_W.ctypes.data, word_W.nbytes)
            made.append(matcher)

        _with_deep_stack(compile_deep, limits.STACK_BYTES)
        (matcher,) = made
        if reason := matcher.get_error():
            raise GrammarError(limits.one_line(reason))
        return matcher

    def _open_tokenizer(self) -> "LLTokenizer":
        if self._tokenizer is None:
            if not self._eos_token_ids:
                raise GrammarError("this model has no end token, with which an answer would end")
            from llguidance import LLTokenizer

            text = self._read_tokenizer()
            try:
                self._tokenizer = LLTokenizer(text, eos_token=self._eos_token_ids[0])
            except Exception as error:  # whatever it is, answers in its tokens cannot be checked
                raise GrammarError(f"this model's tokenizer is not supported: {error}") from error
            added = json.loads(text).get("added_tokens") or ()
            self._special_tokens = frozenset(each["content"] for each in added if each.get("special"))
        return self._tokenizer


def _with_deep_stack(work: Callable[[], None], stack_bytes: int) -> None:
    """Run `work` in a thread that may recurse deeply."""
    before = threading.stack_size(stack_bytes)
    try:
        thread = threading.Thread(target=work, name="grammar")
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
