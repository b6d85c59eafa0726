"""Stop strings are found however they are split, and never sent to the client."""

import random

from sundog.actors.core.params.stop_strings import StopStrings


def watch(stops: tuple[str, ...], pieces: list[str]) -> tuple[str, str | None]:
    """All that is shown of a text that comes in pieces, and the stop string it ran into."""
    watcher, shown = StopStrings(stops), ""
    for piece in pieces:
        text, stop = watcher.feed(piece)
        shown += text
        assert not any(each in shown for each in stops)
        if stop is not None:
            return shown, stop
    return shown + watcher.flush(), None


def test_a_stop_string_is_found_however_it_is_split() -> None:
    """In one piece, or a character at a time, or anything between."""
    text = "The end. And more"
    for cut in range(len(text)):
        for end in range(cut, len(text)):
            pieces = [text[:cut], text[cut:end], text[end:]]
            assert watch(("end. A",), pieces) == ("The ", "end. A")


def test_what_begins_like_a_stop_string_is_shown_when_it_is_none() -> None:
    """Held back only while it could still become one."""
    assert watch(("stop!",), ["st", "op", "s"]) == ("stops", None)
    assert watch(("stop!",), ["sto"]) == ("sto", None)


def test_the_first_of_several_stop_strings_counts() -> None:
    """First in the text, not in the list."""
    assert watch(("later", "soon"), ["so", "on, la", "ter"]) == ("", "soon")


def test_without_stop_strings_all_text_is_shown_at_once() -> None:
    """Nothing is held back."""
    assert StopStrings(()).feed("text") == ("text", None)


def test_all_but_a_tail_is_shown_at_once() -> None:
    """Not more is held back than the longest stop string less one character."""
    assert StopStrings(("\n\nHuman",)).feed("0123456789") == ("0123", None)


def test_any_split_shows_the_text_before_the_first_stop_string() -> None:
    """A small alphabet, so that near misses are common."""
    for seed in range(500):
        rng = random.Random(seed)
        text = "".join(rng.choices("ab\n", k=rng.randint(0, 30)))
        stops = tuple("".join(rng.choices("ab\n", k=rng.randint(2, 4))) for _ in range(rng.randint(1, 3)))
        pieces, rest = [], text
        while rest:
            size = rng.randint(1, 4)
            pieces.append(rest[:size])
            rest = rest[size:]
        shown, stop = watch(stops, pieces)
        if stop is None:
            assert shown == text and not any(each in text for each in stops)
        else:
            assert text.startswith(shown + stop)
