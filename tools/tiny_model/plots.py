"""Short stories and what can be asked about them.

A plot draws its props from the random generator handed in and returns the text together with
questions whose answers follow from it. Text that is drawn never depends on anything else.
"""

from collections.abc import Callable
from random import Random

from tools.tiny_model import lexicon as lex
from tools.tiny_model.stories import Cast, Story, article, cast_facts, draw_cast, ending, opening


def lost(rng: Random, c: Cast) -> Story:
    """Return a story in which something is lost, one of the two finds it, and gets a reward."""
    wrong = rng.choice([s for s in lex.SPOTS if s != c.spot])
    finder = rng.choice((c.hero, c.helper))
    gift, day = rng.choice(lex.FOODS), rng.choice(lex.DAYS)
    he = c.pronoun.capitalize()
    text = " ".join(
        (
            opening(rng, c),
            f"{c.hero} had {article(c.colour)} {c.thing} and took it everywhere.",
            rng.choice((f"One {day}, the {c.thing} was gone.", f"But on {day} the {c.thing} was lost.")),
            f"{he} looked {wrong}, but it was not there.",
            rng.choice((f"{c.hero} sat down and began to cry.", f"{he} did not know what to do.")),
            f"Then {c.helper} the {c.helper_kind} came by and said, "
            + rng.choice(('"Do not worry, I will help you."', '"Let us look for it together."')),
            rng.choice(("They looked and looked.", "They searched until the sun was low.")),
            f"At last {finder} found the {c.thing} {c.spot}.",
            f"{c.hero} was so happy that {c.pronoun} gave {c.helper} some {gift}.",
            ending(rng, c),
        )
    )
    return Story(
        text,
        c,
        "lost",
        (
            *cast_facts(c),
            (
                (f"Who found the {c.thing}?", f"Who found {c.hero}'s {c.thing}?"),
                f"{finder} found the {c.thing}.",
            ),
            (
                (f"Where was the {c.thing}?", f"Where did they find the {c.thing}?"),
                f"The {c.thing} was {c.spot}.",
            ),
            (
                (
                    f"What colour was the {c.thing}?",
                    f"Which colour did the {c.thing} have?",
                    f"What color was the {c.thing}?",
                ),
                f"The {c.thing} was {c.colour}.",
            ),
            ((f"What did {c.hero} lose?", "What was lost?"), f"{c.hero} lost the {c.colour} {c.thing}."),
            (
                (f"Who helped {c.hero}?", f"Who came by to help {c.hero}?"),
                f"{c.helper} the {c.helper_kind} helped {c.hero}.",
            ),
            (
                (f"What did {c.hero} give {c.helper}?", f"What did {c.helper} get?"),
                f"{c.hero} gave {c.helper} some {gift}.",
            ),
        ),
    )


def storm(rng: Random, c: Cast) -> Story:
    """Return a story in which a storm breaks a house, and a friend takes the other in."""
    drink = rng.choice(("hot tea", "warm milk", "hot soup", "sweet juice"))
    text = " ".join(
        (
            opening(rng, c),
            rng.choice(("One night a great storm came.", "One evening the wind began to howl.")),
            f"It broke the roof of {c.helper} the {c.helper_kind}, who lived near by.",
            f"{c.helper} ran through the rain and knocked at the door.",
            rng.choice(('"Come in, my friend," said {}.', '"Come in and get warm," said {}.')).format(c.hero),
            f"They sat by the fire, drank {drink} and told each other stories.",
            f"To say thank you, {c.helper} gave {c.hero} {article(c.colour)} {c.thing}.",
            "In the morning the sun was shining, and they built a new roof.",
            ending(rng, c),
        )
    )
    return Story(
        text,
        c,
        "storm",
        (
            *cast_facts(c),
            (("What did they drink?", f"What did {c.hero} and {c.helper} drink?"), f"They drank {drink}."),
            (("What did the storm break?", "What was broken?"), f"The storm broke the roof of {c.helper}."),
            (("Who knocked at the door?", "Who ran through the rain?"), f"{c.helper} knocked at the door."),
            (
                (f"What did {c.helper} give {c.hero}?", f"What did {c.hero} get?"),
                f"{c.helper} gave {c.hero} {article(c.colour)} {c.thing}.",
            ),
        ),
    )


def race(rng: Random, c: Cast) -> Story:
    """Return a story in which the quick one stops to eat, and the steady one wins."""
    fruit = rng.choice([f for f in lex.FRUITS if f not in ("berry", "cherry")])
    text = " ".join(
        (
            opening(rng, c),
            f"{c.hero} could run very fast and liked to say so.",
            f'"Let us have a race," said {c.helper} the {c.helper_kind}. '
            f'"The winner gets {article(c.colour)} {c.thing}."',
            f"{c.hero} ran and was soon far ahead.",
            f"But on the way {c.pronoun} saw {article(fruit)} and stopped to eat it.",
            rng.choice(("It was so good that {0} fell asleep.", "Then {0} lay down and fell asleep.")).format(
                c.hero
            ),
            f"{c.helper} walked on and on, step by step, and won the race.",
            f'"Slow and steady is also fast," said {c.helper}.',
            ending(rng, c),
        )
    )
    return Story(
        text,
        c,
        "race",
        (
            *cast_facts(c),
            (("Who won the race?", "Who was the winner?"), f"{c.helper} won the race."),
            (("Who fell asleep?", "Who lost the race?"), f"{c.hero} fell asleep and lost the race."),
            (
                (f"What did {c.hero} eat?", f"What did {c.hero} see on the way?"),
                f"{c.hero} ate {article(fruit)}.",
            ),
            (
                ("What did the winner get?", "What was the prize?"),
                f"The winner got {article(c.colour)} {c.thing}.",
            ),
        ),
    )


def treasure(rng: Random, c: Cast) -> Story:
    """Return a story in which an old map leads to something worth sharing."""
    num_coins, hours = rng.randint(2, 20), rng.choice(("an hour", "two hours", "a whole day"))
    text = " ".join(
        (
            opening(rng, c),
            rng.choice(("One morning {0} found an old map {1}.", "One day {0} found a map {1}.")).format(
                c.hero, c.spot
            ),
            f"{c.pronoun.capitalize()} showed it to {c.helper} the {c.helper_kind}.",
            f'"It shows the way to a treasure," said {c.helper}. "Let us go!"',
            f"They walked for {hours}, over the hills and through the woods.",
            "Under a tall tree they began to dig.",
            f"There was a box with {num_coins} coins and {article(c.colour)} {c.thing} in it.",
            f"{c.hero} kept the {c.thing}, and {c.helper} took the coins.",
            ending(rng, c),
        )
    )
    return Story(
        text,
        c,
        "treasure",
        (
            *cast_facts(c),
            ((f"Where did {c.hero} find the map?", "Where was the map?"), f"The map was {c.spot}."),
            (
                ("How many coins were in the box?", "How many coins did they find?"),
                f"There were {num_coins} coins in the box.",
            ),
            ((f"Who kept the {c.thing}?", f"Who took the {c.thing}?"), f"{c.hero} kept the {c.thing}."),
            (("Who took the coins?", "Who got the coins?"), f"{c.helper} took the coins."),
            (("How long did they walk?",), f"They walked for {hours}."),
        ),
    )


def birthday(rng: Random, c: Cast) -> Story:
    """Return a story about a surprise for a friend."""
    food, day = rng.choice(lex.FOODS), rng.choice(lex.DAYS)
    text = " ".join(
        (
            opening(rng, c),
            f"On {day} it was the birthday of {c.helper} the {c.helper_kind}.",
            f"{c.hero} wanted to make a surprise.",
            rng.choice(
                (
                    f"{c.pronoun.capitalize()} made some {food} and picked flowers.",
                    f"In the morning {c.pronoun} made some {food} and sang a song.",
                )
            ),
            f"Then {c.pronoun} put {article(c.colour)} {c.thing} {c.spot}.",
            f'"Look {c.spot}," said {c.hero}.',
            f"{c.helper} looked, found the {c.thing} and jumped for joy.",
            '"This is the best birthday ever!"',
            ending(rng, c),
        )
    )
    return Story(
        text,
        c,
        "birthday",
        (
            *cast_facts(c),
            (("Whose birthday was it?", "Who had a birthday?"), f"It was the birthday of {c.helper}."),
            (("When was the birthday?", "On which day was the birthday?"), f"The birthday was on {day}."),
            ((f"What did {c.hero} make?",), f"{c.hero} made some {food}."),
            (
                (f"Where was the {c.thing}?", f"Where did {c.hero} put the {c.thing}?"),
                f"The {c.thing} was {c.spot}.",
            ),
            ((f"Who found the {c.thing}?",), f"{c.helper} found the {c.thing}."),
            (
                (f"What colour was the {c.thing}?", f"What color was the {c.thing}?"),
                f"The {c.thing} was {c.colour}.",
            ),
        ),
    )


PLOTS: dict[str, Callable[[Random, Cast], Story]] = {
    "lost": lost,
    "storm": storm,
    "race": race,
    "treasure": treasure,
    "birthday": birthday,
}


def draw_story(rng: Random, theme: str | None = None) -> Story:
    """Return a story with a new cast, of the given theme or of any."""
    return PLOTS[theme or rng.choice(tuple(PLOTS))](rng, draw_cast(rng))
