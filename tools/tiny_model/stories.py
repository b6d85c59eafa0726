"""Common parts of all stories: a cast, a beginning, an end, and questions."""

from dataclasses import dataclass
from random import Random

from tools.tiny_model import lexicon as lex


@dataclass(frozen=True, slots=True)
class Cast:
    """Characters and things of a story: sampled once, or fixed in part by a request."""

    hero: str
    kind: str
    pronoun: str
    helper: str
    helper_kind: str
    thing: str
    colour: str
    trait: str
    home: str
    spot: str


@dataclass(frozen=True, slots=True)
class Story:
    """Text of a story, its cast, and pairs of a question form and an answer."""

    text: str
    cast: Cast
    theme: str
    facts: tuple[tuple[tuple[str, ...], str], ...]


def article(word: str) -> str:
    """Return the word with its indefinite article."""
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def draw_cast(rng: Random) -> Cast:
    """Return a cast of two different animals with different names."""
    female = rng.random() < 0.5
    hero = rng.choice(lex.GIRLS if female else lex.BOYS)
    helper = rng.choice([n for n in lex.GIRLS + lex.BOYS if n != hero])
    kind, helper_kind = rng.sample(lex.ANIMALS, 2)
    return Cast(
        hero,
        kind,
        "she" if female else "he",
        helper,
        helper_kind,
        rng.choice(lex.THINGS),
        rng.choice(lex.COLOURS),
        rng.choice(lex.TRAITS),
        rng.choice(lex.HOMES),
        rng.choice(lex.SPOTS),
    )


def opening(rng: Random, c: Cast) -> str:
    """Return the first sentence or two: who lived where."""
    who = f"{article(c.trait)} {c.kind} named {c.hero}"
    form = rng.choice(
        (
            "Once upon a time there was {who} who lived {home}.",
            "Once upon a time, {who} lived {home}.",
            "There once was {who}. {hero} lived {home}.",
            "Long ago, {who} lived {home}.",
        )
    )
    return form.format(who=who, hero=c.hero, home=c.home)


def ending(rng: Random, c: Cast) -> str:
    """Return the last sentence."""
    return rng.choice(
        (
            "From that day on, {a} and {b} were the best of friends.",
            "{a} and {b} laughed and went home together.",
            "That night {a} slept well and dreamed of {b}.",
            "And {a} never forgot how kind {b} had been.",
            "They lived happily ever after.",
        )
    ).format(a=c.hero, b=c.helper)


def cast_facts(c: Cast) -> tuple[tuple[tuple[str, ...], str], ...]:
    """Return questions, with answers, that apply to every plot."""
    return (
        ((f"What kind of animal is {c.hero}?", f"What is {c.hero}?"), f"{c.hero} is {article(c.kind)}."),
        (
            (f"What kind of animal is {c.helper}?", f"What is {c.helper}?"),
            f"{c.helper} is {article(c.helper_kind)}.",
        ),
        ((f"Where did {c.hero} live?", f"Where does {c.hero} live?"), f"{c.hero} lived {c.home}."),
        (
            (f"What is the name of the {c.kind}?", f"What was the {c.kind} called?"),
            f"The {c.kind} is named {c.hero}.",
        ),
    )
