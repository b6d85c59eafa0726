"""Pieces of a Lark grammar that are put together: what is regular becomes one terminal.

The library reads terminals greedily and never goes back, so two of them in a row may miss what an automaton
of both would find. Within one terminal nothing is missed.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

ANY = "/(?s:.*)/"
SOME = "/(?s:.+)/"


@dataclass(frozen=True, slots=True)
class Piece:
    """An expression; `is_terminal` if terminals may hold it, `is_open` if it ends in unbounded text."""

    text: str
    is_terminal: bool = False
    is_open: bool = False


NOTHING = Piece('""', is_terminal=True)


class PieceWriter:
    """Writes one grammar; text that is among `special_tokens` is said by that token alone."""

    def __init__(self, special_tokens: frozenset[str]) -> None:
        self._special = special_tokens
        names = "|".join(map(re.escape, sorted(special_tokens, key=len, reverse=True)))
        self._split = re.compile(f"({names})") if names else None
        self._lines: list[str] = []

    def grammar(self, start: Piece) -> str:
        """All that was written, with where it begins."""
        return "\n".join([f"start: {self._in_rule(start)}", *self._lines])

    def token(self, token: object) -> Piece:
        """Return a piece for one token, by its number or, if it is a special one, by its text."""
        if isinstance(token, int) and not isinstance(token, bool) and token >= 0:
            return Piece(f"<[{token}]>")
        if isinstance(token, str) and token in self._special:
            return Piece(_named(token))
        raise ValueError(f"the token {token!r} is neither a number nor a special token of this model")

    def literal(self, text: str) -> Piece:
        """Return a piece for this very text."""
        if self._split is None or self._split.search(text) is None:
            return Piece(json.dumps(text), is_terminal=True)
        parts = [part for part in self._split.split(text) if part]
        return Piece(" ".join(_named(part) if part in self._special else json.dumps(part) for part in parts))

    def text(
        self,
        ends: Sequence[str],
        stops: Sequence[str] = (),
        excludes: Sequence[str] = (),
        most_characters: int | None = None,
    ) -> Piece:
        """Free text up to the first of `ends`, which belongs to it; none of `stops` and `excludes` is in it.

        Without `ends` it is open. Text holds no special token: one that is an end needs no looking for.
        """
        tokens = [end for end in ends if self._is_special(end)]
        own = [end for end in ends if end not in tokens]
        seen = [stop for stop in dict.fromkeys((*own, *stops)) if not self._is_special(stop)]
        free = ANY if most_characters is None else f"/(?s:.{{0,{most_characters}}})/"
        for exclude in excludes:
            free = f"({free} & ~({ANY} {json.dumps(exclude)} {ANY}))"
        pieces = []
        if own:
            first = f"({free} {_one_of(own)}) & ~({ANY} {_one_of(seen)} {SOME})"
            pieces.append(Piece(self._terminal(first), is_terminal=True))
        if not ends or tokens:
            tail = self._terminal(f"{free} & ~({ANY} {_one_of(seen)} {ANY})" if seen else free)
            if not ends:
                return Piece(tail, is_terminal=True, is_open=True)
            pieces.append(Piece(f"{tail} ({' | '.join(self.literal(end).text for end in tokens)})"))
        return self.either(pieces)

    def joined(self, pieces: Sequence[Piece]) -> Piece:
        """Return these pieces one after the other."""
        kept = [piece for piece in pieces if piece != NOTHING] or [NOTHING]
        if all(piece.is_terminal for piece in kept):
            text = " ".join(f"({piece.text})" for piece in kept)
            return replace(kept[-1], text=self._terminal(text) if len(kept) > 1 else kept[0].text)
        runs: list[list[Piece]] = []
        for piece in kept:
            if runs and runs[-1][-1].is_terminal and piece.is_terminal:
                runs[-1].append(piece)
            else:
                runs.append([piece])
        texts = [self._in_rule(run[0] if len(run) == 1 else self.joined(run)) for run in runs]
        return Piece(self._rule(" ".join(texts)), is_open=kept[-1].is_open)

    def either(self, pieces: Sequence[Piece]) -> Piece:
        """Return a choice of these pieces."""
        if len(pieces) == 1:
            return pieces[0]
        is_open = any(piece.is_open for piece in pieces)
        if all(piece.is_terminal for piece in pieces):
            return Piece(self._terminal(" | ".join(f"({piece.text})" for piece in pieces)), True, is_open)
        return Piece(self._rule(" | ".join(map(self._in_rule, pieces))), is_open=is_open)

    def repeated(self, piece: Piece, times: str) -> Piece:
        """Return the piece repeated as often as Lark's sign `times` says."""
        if piece.is_terminal:
            return Piece(self._terminal(f"({piece.text}){times}"), is_terminal=True)
        return Piece(self._rule(f"({self._in_rule(piece)}){times}"))

    def _is_special(self, text: str) -> bool:
        """Whether it begins with a special token."""
        return self._split is not None and self._split.match(text) is not None

    def _terminal(self, text: str) -> str:
        name = f"T{len(self._lines)}"
        self._lines.append(f"{name}: {text}")
        return name

    def _rule(self, text: str) -> str:
        name = f"r{len(self._lines)}"
        self._lines.append(f"{name}: {text}")
        return name

    def _in_rule(self, piece: Piece) -> str:
        """The piece as part of a rule."""
        if piece.is_terminal:
            return self._terminal(piece.text)
        return piece.text if re.fullmatch(r"\w+", piece.text) else self._rule(piece.text)


def _one_of(texts: Sequence[str]) -> str:
    return f"({' | '.join(map(json.dumps, texts))})"


def _named(token: str) -> str:
    """A special token as Lark names it, which takes those in angle brackets alone."""
    if not (token.startswith("<") and token.endswith(">")):
        raise ValueError(f"the special token {token!r} cannot be named here")
    return token
