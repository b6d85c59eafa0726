"""Kinds of questions about words, small facts, short texts and the model itself."""

from random import Random

from tools.tiny_model import lexicon as lex
from tools.tiny_model import topics
from tools.tiny_model.example import FORMS, Example, Kind, ask
from tools.tiny_model.stories import article


def invented_word(rng: Random) -> str:
    """Return a made-up word of one or two syllables."""
    onset = (
        "b c d f g h j k l m n p r s t v w z br bl ch cl cr dr fl fr gl gr pl pr sh sl sn sp st th tr"
    ).split()
    coda = ["", *"b d g k l m n p r s t ck ng nd nt rk sh st th".split()]
    return "".join(
        rng.choice(onset) + rng.choice("aeiou") + rng.choice(coda) for _ in range(rng.choice((1, 1, 2)))
    )


def draw_word(rng: Random) -> str:
    """Return a word to spell: a known one or, in one case of four, an invented one."""
    return invented_word(rng) if rng.random() < 0.25 else rng.choice(lex.SPELLING_WORDS)


def quoted(rng: Random, word: str) -> str:
    """Return the word, sometimes in quotation marks."""
    return rng.choice(("{}", "{}", "{}", '"{}"', "'{}'")).format(word)


def reverse(rng: Random) -> Example:
    """Return an example with a word spelled forwards, then backwards."""
    w = draw_word(rng)
    form = rng.choice(FORMS["reverse"])
    backwards = f"Backwards it is {'-'.join(w[::-1])}."
    return ask(
        "reversal",
        f"reverse:{w}",
        form.format(quoted(rng, w)),
        f"The word {w} is spelled {'-'.join(w)}. {backwards}",
        backwards,
    )


def spell(rng: Random) -> Example:
    """Return an example about spelling a word, counting its letters, or its first or last letter."""
    w, spelled = draw_word(rng), ""
    spelled, choice = "-".join(w), rng.random()
    if choice < 0.5:
        form = rng.choice(FORMS["spell"])
        return ask(
            "spelling",
            f"spell:{w}:{form}",
            form.format(quoted(rng, w)),
            f"The word {w} is spelled {spelled}.",
        )
    if choice < 0.8:
        form = rng.choice(FORMS["letters"])
        return ask(
            "spelling",
            f"letters:{w}",
            form.format(quoted(rng, w)),
            f"The word {w} is spelled {spelled}, so it has {len(w)} letters.",
            f"has {len(w)} letters",
        )
    place, letter = rng.choice((("first", w[0]), ("last", w[-1])))
    return ask(
        "spelling",
        f"{place}:{w}",
        f"What is the {place} letter of {quoted(rng, w)}?",
        f"The {place} letter of {w} is {letter}.",
    )


def fact(kind: str, form: str, subject: str, answer: str) -> Example:
    """Return an example with a fact to remember; its key includes the wording."""
    return ask(kind, f"{form}:{subject}", form.format(subject), answer)


def small_facts(rng: Random) -> Example:
    """Return an example about opposites, animals, colours, or what comes next."""
    choice = rng.randrange(6)
    if choice == 0:
        a, b = rng.choice(lex.OPPOSITES)
        a, b = rng.choice(((a, b), (b, a)))
        form = rng.choice(FORMS["opposite"])
        return fact("small facts", form, a, f"The opposite of {a} is {b}.")
    if choice == 1:
        a = rng.choice(tuple(lex.SOUNDS))
        form = rng.choice(FORMS["sound"])
        return fact("small facts", form, article(a), f"{article(a).capitalize()} says {lex.SOUNDS[a]}.")
    if choice == 2:
        a = rng.choice(tuple(lex.YOUNG))
        form = rng.choice(FORMS["young"])
        return fact("small facts", form, a, f"A young {a} is called {article(lex.YOUNG[a])}.")
    if choice == 3:
        a = rng.choice(tuple(lex.DWELLINGS))
        form = rng.choice(FORMS["dwelling"])
        return fact(
            "small facts",
            form,
            article(a),
            f"{article(a).capitalize()} lives in {article(lex.DWELLINGS[a])}.",
        )
    if choice == 4:
        a = rng.choice(tuple(lex.HUES))
        form = rng.choice(FORMS["colour"])
        return fact("small facts", form, a, f"The colour of {a} is {lex.HUES[a]}.")
    series = rng.choice((lex.DAYS, lex.MONTHS, tuple("abcdefghijklmnopqrstuvwxyz")))
    what = {7: "day", 12: "month", 26: "letter"}[len(series)]
    side, offset = rng.choice((("after", 1), ("before", -1)))
    i = rng.randrange(len(series))
    other = series[(i + offset) % len(series)]
    form = rng.choice(
        (f"Which {what} comes {side} {{}}?", f"What {what} is {side} {{}}?", f"Which {what} is {side} {{}}?")
    )
    return fact(
        "small facts",
        form,
        series[i],
        f"{other[0].upper()}{other[1:]} comes {side} {series[i]}."
        if what != "letter"
        else f"The letter {other} comes {side} {series[i]}.",
    )


def lists(rng: Random) -> Example:
    """Return an example with the first few things of a kind."""
    what, n = rng.choice(tuple(lex.LISTS)), rng.randint(2, 6)
    items = [article(i) if what == "animals" else i for i in lex.LISTS[what][:n]]
    form = rng.choice(
        ("Name {} {}.", "List {} {}.", "Can you name {} {}?", "Tell me {} {}.", "Give me {} {}.")
    )
    number = rng.choice((lex.NUMBER_WORDS[n], str(n)))
    plural = {"days": "days of the week", "months": "months"}.get(what, what)
    answer = f"Here are {lex.NUMBER_WORDS[n]} {plural}: {', '.join(items[:-1])} and {items[-1]}."
    return ask("lists", f"list:{what}:{n}:{form}", form.format(number, plural), answer)


def repeat(rng: Random) -> Example:
    """Return an example in which words are repeated, once or several times."""
    if rng.random() < 0.5:
        words = " ".join(rng.choice(lex.SPELLING_WORDS) for _ in range(rng.randint(2, 12)))
        form = rng.choice(("Repeat after me: {}", "Say this: {}", "Repeat these words: {}"))
        return ask("repeating", f"repeat:{words}", form.format(words), words)
    w, n = rng.choice(lex.SPELLING_WORDS), rng.randint(2, 9)
    number = rng.choice((lex.NUMBER_WORDS[n], str(n)))
    form = rng.choice(("Say {} {} times.", "Repeat the word {} {} times.", "Write {} {} times."))
    return ask("repeating", f"say:{w}:{n}", form.format(w, number), ", ".join([w] * n) + ".")


def where(rng: Random) -> Example:
    """Return an example that tells in a few sentences who put what where, and asks for one of them."""
    n = rng.randint(2, 4)
    people, things = rng.sample(lex.GIRLS + lex.BOYS, n), rng.sample(lex.THINGS, n)
    holders, rooms = rng.sample(lex.HOLDERS, n), rng.sample(lex.ROOMS, n)
    told = [
        rng.choice((f"{p} put the {t} in the {h}.", f"{p} took the {t} to the {r}."))
        for p, t, h, r in zip(people, things, holders, rooms, strict=True)
    ]
    i = rng.randrange(n)
    place = told[i].rstrip(".").split(" the ")[-1]
    if rng.random() < 0.5:
        question, answer = f"Where is the {things[i]}?", f"The {things[i]} is in the {place}."
    else:
        verb = "put" if " put " in told[i] else "took"
        question = f"Who {verb} the {things[i]}{' away' if verb == 'put' else ''}?"
        answer = f"{people[i]} {verb} the {things[i]}{' away' if verb == 'put' else ''}."
    text = " ".join(told)
    return ask("short texts", f"where:{text}", f"{text} {question}", answer)


def memory(rng: Random) -> Example:
    """Return an example with a name or a favourite colour, told first and asked for later."""
    name, colour = rng.choice(lex.GIRLS + lex.BOYS), rng.choice(lex.COLOURS)
    if rng.random() < 0.6:
        hello = rng.choice(("My name is {}.", "Hi, I am {}.", "Hello! My name is {}.", "I am {}."))
        first = ("user", hello.format(name)), ("assistant", f"Nice to meet you, {name}!")
        question = rng.choice(("What is my name?", "Who am I?", "Do you remember my name?"))
        answer = f"Your name is {name}."
    else:
        first = (
            ("user", f"My favourite colour is {colour}."),
            ("assistant", f"{colour.capitalize()} is a lovely colour."),
        )
        question = rng.choice(("What is my favourite colour?", "Which colour do I like?"))
        answer = f"Your favourite colour is {colour}."
    between: tuple[tuple[str, str], ...] = ()
    keys = [f"memory:{name}:{colour}"]
    for _ in range(rng.choice((0, 0, 1, 2))):
        filler = rng.choice((small_facts, repeat, small_talk))(rng)
        between += filler.turns
        keys += filler.keys
    turns = (*first, *between, ("user", question), ("assistant", answer))
    return Example("memory", tuple(keys), turns, (answer,))


def explain(rng: Random) -> Example:
    """Return an example that explains something in two or three sentences."""
    topic, form = rng.choice(tuple(topics.TOPICS)), rng.choice(topics.TOPIC_QUESTIONS)
    return fact("explanations", form, topic, topics.TOPICS[topic])


def small_talk(rng: Random) -> Example:
    """Return an example of a greeting, thanks, or a question about the model itself."""
    questions, answer = rng.choice(topics.SMALL_TALK)
    question = rng.choice(questions)
    return ask("small talk", f"talk:{question}", question, answer)


def unknown(rng: Random) -> Example:
    """Return an example with a question that the model cannot answer, and says so."""
    slots = {name: rng.choice(words) for name, words in topics.UNKNOWN_SLOTS.items()}
    question = rng.choice(topics.UNKNOWN).format(**slots)
    return ask("unknown", f"unknown:{question}", question, topics.UNKNOWN_ANSWER, "I do not know")


WORD_KINDS: tuple[tuple[Kind, float], ...] = (
    (reverse, 5.0),
    (spell, 3.5),
    (small_facts, 4.0),
    (lists, 1.2),
    (repeat, 4.0),
    (where, 3.0),
    (memory, 2.0),
    (explain, 3.5),
    (small_talk, 3.0),
    (unknown, 1.5),
)
