"""Grammars compiled for one tokenizer and kept: the front checks with them, the backend takes matchers.

Thread-safe. Compiling takes 1 to 5 ms for the schemas of most clients; it never happens on the event loop.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from sundog.actors.core.params.sampling import Constraint, ConstraintKind
from sundog.actors.front.foreign import contained
from sundog.runtime.structured import limits
from sundog.runtime.structured.trial import GrammarError, Trial

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

T = TypeVar("T")

MOST_GRAMMARS = 128
MISSING = "structured output needs llguidance, which is not installed: pip install 'sundog[structured]'"
JSON_KINDS = (
    ConstraintKind.JSON,
    ConstraintKind.CHOICE,
    ConstraintKind.STRUCTURAL_TAG,
    ConstraintKind.CALLS_OR_JSON,
)


@dataclass(slots=True)
class _Held:
    compiled: "LLMatcher | str"
    num_bytes: int
    num_holders: int = 1


class Grammars:
    """Grammars of one model: at most 128, of at most 512 MB; the least recently used is evicted first.

    Grammars held for requests of an engine (`hold`) are kept in addition, until they are released.
    `tokenizer` returns the text of tokenizer.json, which `prepare` or the first grammar reads.
    """

    def __init__(self, tokenizer: Callable[[], str], eos_token_ids: Sequence[int]) -> None:
        self._read_tokenizer = tokenizer
        self._eos_token_ids = tuple(eos_token_ids)
        self._tokenizer: LLTokenizer | None = None
        self._special_tokens: frozenset[str] = frozenset()
        self._added_tokens: frozenset[str] = frozenset()
        self._trial = Trial(tokenizer, self._eos_token_ids[0] if self._eos_token_ids else 0)
        self._kept: OrderedDict[Constraint, tuple[LLMatcher, int]] = OrderedDict()
        """Compiled grammars with their bytes of memory, least recently used first."""
        self._failed: OrderedDict[Constraint, str] = OrderedDict()
        """Reasons why grammars could not be compiled ahead, the oldest first."""
        self._kept_bytes = 0
        self._held: dict[Constraint, _Held] = {}
        self._compiling = threading.Lock()
        self._keeping = threading.Lock()

    def prepare(self) -> None:
        """Read the tokenizer now: it takes a second for 150,000 tokens, during which nothing else runs.

        Without the library, or an end token, grammars are refused one by one.
        """
        with self._compiling, suppress(GrammarError, ModuleNotFoundError):
            self._open_tokenizer()

    def knows(self, constraint: Constraint) -> bool:
        """Return whether the constraint is compiled, so that checking takes no time."""
        return constraint in self._kept or constraint in self._held

    def check(self, constraint: Constraint) -> None:
        """Compile the constraint unless it is cached; raises GrammarError if it is unsupported."""
        self._compiled(constraint)

    def compile_ahead(self, constraint: Constraint) -> None:
        """Compile the constraint for `matcher`, which later raises the error, if there is one."""
        with self._keeping:
            self._failed.pop(constraint, None)
        try:
            self._compiled(constraint)
        except GrammarError as error:
            with self._keeping:
                self._failed[constraint] = str(error)
                while len(self._failed) > MOST_GRAMMARS:
                    self._failed.popitem(last=False)

    def hold(self, constraint: Constraint) -> int | None:
        """Hold the grammar for one more request and return its bytes; None if it is neither compiled nor
        failed.
        """
        with self._keeping:
            if (held := self._held.get(constraint)) is not None:
                held.num_holders += 1
                return held.num_bytes
            kept = self._kept.get(constraint) or (self._failed.get(constraint), 0)
            if kept[0] is None:
                return None
            self._held[constraint] = _Held(kept[0], kept[1])
            return kept[1]

    def let_go(self, constraint: Constraint) -> None:
        """Release the grammar for one request."""
        with self._keeping:
            held = self._held[constraint]
            held.num_holders -= 1
            if not held.num_holders:
                del self._held[constraint]

    def matcher(self, constraint: Constraint) -> "LLMatcher":
        """Return a new matcher at the beginning of an answer, in 10 to 600 µs: it never compiles.

        Raises GrammarError for a grammar that could not be compiled ahead, or is not kept.
        """
        with self._keeping:
            held = self._held.get(constraint)
            kept = self._kept.get(constraint) if held is None else (held.compiled, 0)
            found = self._failed.get(constraint) if kept is None else kept[0]
        if found is None:
            raise GrammarError("it was not compiled before the step that needs it")
        if isinstance(found, str):
            raise GrammarError(found)
        return found.deep_copy()

    @property
    def num_words(self) -> int:
        """Length of a mask in words of 32 tokens; known once a grammar has been compiled."""
        assert self._tokenizer is not None
        return -(-self._tokenizer.vocab_size // 32)

    def _compiled(self, constraint: Constraint) -> "LLMatcher":
        with self._keeping:
            if constraint in self._kept:
                self._kept.move_to_end(constraint)
                return self._kept[constraint][0]
            held = self._held.get(constraint)
            if held is not None and not isinstance(held.compiled, str):
                return held.compiled
        with self._compiling:
            try:
                matcher, num_bytes = contained(partial(self._compile, constraint))
            except GrammarError:
                raise
            except Exception as error:  # a process that cannot begin, a library that panics
                raise GrammarError(f"it could not be compiled: {limits.one_line(str(error))}") from error
        with self._keeping:
            if constraint not in self._kept:
                self._kept[constraint] = matcher, num_bytes
                self._kept_bytes += num_bytes
            while len(self._kept) > MOST_GRAMMARS or self._kept_bytes > limits.MOST_KEPT_BYTES:
                _, (_, forgotten_bytes) = self._kept.popitem(last=False)
                self._kept_bytes -= forgotten_bytes
        return matcher

    def _compile(self, constraint: Constraint) -> "tuple[LLMatcher, int]":
        """Return a matcher and its memory in bytes; raises GrammarError."""
        try:
            from llguidance import LLMatcher

            from sundog.runtime.structured.child import first_masked
        except ModuleNotFoundError:
            raise GrammarError(MISSING) from None
        most = limits.MOST_JSON_CHARACTERS if constraint.kind in JSON_KINDS else limits.MOST_CHARACTERS
        if len(constraint.text) > most:
            raise GrammarError(f"it has {len(constraint.text)} characters; at most {most} are allowed")
        tokenizer = self._open_tokenizer()
        has_marks = constraint.kind is ConstraintKind.CALLS_OR_JSON  # which are tokens, special or not
        tried = self._trial.grammar(constraint, self._added_tokens if has_marks else self._special_tokens)

        def compile_deep() -> LLMatcher:
            return first_masked(
                LLMatcher(tokenizer, tried.text, log_level=0, limits=limits.limits()), tokenizer
            )

        matcher = _with_deep_stack(compile_deep, limits.STACK_BYTES)
        if reason := matcher.get_error():
            raise GrammarError(limits.one_line(reason))
        return matcher, tried.num_bytes + 4 * len(constraint.text)

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
            self._added_tokens = frozenset(each["content"] for each in added)
        return self._tokenizer


def _with_deep_stack(work: Callable[[], T], stack_bytes: int) -> T:
    """Run `work` in a thread that may recurse deeply; raises GrammarError for whatever is raised there."""
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(contained(work))
        except Exception as error:  # noqa: BLE001  # raised below, where it is waited for
            failed.append(error)

    before = threading.stack_size(stack_bytes)
    try:
        # A daemon: a server that is told to end does not wait for a grammar.
        thread = threading.Thread(target=run, name="grammar", daemon=True)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    if failed:
        raise GrammarError(f"it cannot be compiled: {failed[0]}") from failed[0]
    return done[0]
