"""Bad words as the tokens that spell them.

A word may begin an answer or stand in its middle, so it is spelt without and with a space in front. As in
vLLM, the second spelling counts only if it begins with another token and is no longer: otherwise the space is
a token of its own, and the first spelling covers the word behind it.
"""

from collections.abc import Callable, Iterable

Spelling = tuple[int, ...]


def spellings(words: Iterable[str], encode: Callable[[str], list[int]]) -> tuple[Spelling, ...]:
    """The sequences of tokens that `encode` makes of the words; ValueError if one is no token."""
    found: dict[Spelling, None] = {}
    for word in words:
        bare = word.lstrip()
        plain, spaced = tuple(encode(bare)), tuple(encode(f" {bare}"))
        if not plain:
            raise ValueError(f"bad_words has {word[:40]!r}, of which no token is made: leave it out")
        found[plain] = None
        if spaced and spaced[0] != plain[0] and len(spaced) == len(plain):
            found[spaced] = None
    return tuple(found)
