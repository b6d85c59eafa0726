"""Kinds of short questions about numbers."""

from random import Random

from tools.tiny_model import lexicon as lex
from tools.tiny_model.example import FORMS, Example, Kind, ask


def pair_key(kind: str, a: int, b: int) -> str:
    """Return the key of a pair of numbers, the same in either order."""
    return f"{kind}:{min(a, b)}:{max(a, b)}"


def sum_key(a: int, b: int) -> str:
    """Return the key of a + b; empty if worked answers show the sum, so that it cannot be held out."""
    return "" if min(a, b) < 10 or a % 10 == 0 or b % 10 == 0 else pair_key("add", a, b)


def difference_key(a: int, b: int) -> str:
    """Return the key of a - b; empty by the same rule as for sums."""
    return "" if min(a, b) < 10 or b % 10 == 0 else f"sub:{a}:{b}"


def draw_operand(rng: Random) -> int:
    """Return a number below 100; small numbers are more frequent."""
    return rng.randint(0, 12) if rng.random() < 0.2 else rng.randint(0, 99)


def sum_answer(a: int, b: int) -> str:
    """Return a + b by tens and ones, or only the result if one number is round or small."""
    if not sum_key(a, b):
        return f"{a} + {b} = {a + b}."
    return (
        f"{a % 10} + {b % 10} = {a % 10 + b % 10} and {a // 10 * 10} + {b // 10 * 10} = "
        f"{a // 10 * 10 + b // 10 * 10}, so {a} + {b} = {a + b}."
    )


def difference_answer(a: int, b: int) -> str:
    """Return a - b by tens and then ones, or only the result if one number is round or small."""
    if not difference_key(a, b):
        return f"{a} - {b} = {a - b}."
    rest = a - b // 10 * 10
    return f"{a} - {b // 10 * 10} = {rest} and {rest} - {b % 10} = {a - b}, so {a} - {b} = {a - b}."


def add(rng: Random) -> Example:
    """Return an example with the sum of two numbers below 100."""
    a, b = draw_operand(rng), draw_operand(rng)
    return ask(
        "addition",
        sum_key(a, b),
        rng.choice(FORMS["add"]).format(a=a, b=b),
        sum_answer(a, b),
        f"{a} + {b} = {a + b}.",
    )


def subtract(rng: Random) -> Example:
    """Return an example with the difference of two numbers below 100, which is at least zero."""
    a, b = sorted((draw_operand(rng), draw_operand(rng)), reverse=True)
    return ask(
        "subtraction",
        difference_key(a, b),
        rng.choice(FORMS["subtract"]).format(a=a, b=b),
        difference_answer(a, b),
        f"{a} - {b} = {a - b}.",
    )


def times(rng: Random) -> Example:
    """Return an example of a multiplication table, up to 12."""
    a, b = rng.randint(0, 12), rng.randint(0, 12)
    form = rng.choice(FORMS["times"])
    return ask("multiplication", f"times:{a}:{b}:{form}", form.format(a=a, b=b), f"{a} times {b} is {a * b}.")


def worked_sum(a: int, b: int) -> str:
    """Return a + b, explained by tens and ones."""
    ones, tens = a % 10 + b % 10, a // 10 * 10 + b // 10 * 10
    return (
        f"First I add the ones: {a % 10} + {b % 10} = {ones}. Then I add the tens: "
        f"{a // 10 * 10} + {b // 10 * 10} = {tens}. Together that is {tens} + {ones} = "
        f"{a + b}. So {a} + {b} = {a + b}."
    )


def worked_difference(a: int, b: int) -> str:
    """Return a - b, explained by taking away first the tens and then the ones."""
    tens, ones = b // 10 * 10, b % 10
    return (
        f"First I take away the tens: {a} - {tens} = {a - tens}. Then I take away the ones: "
        f"{a - tens} - {ones} = {a - b}. So {a} - {b} = {a - b}."
    )


def steps(rng: Random) -> Example:
    """Return an example of a sum or difference with its working, in one turn or two."""
    a, b = draw_operand(rng), draw_operand(rng)
    if rng.random() < 0.4:
        a, b = max(a, b), min(a, b)
        sign, key, answer, result = "-", difference_key(a, b), worked_difference(a, b), a - b
    else:
        sign, key, answer, result = "+", sum_key(a, b), worked_sum(a, b), a + b
    e = f"{a} {sign} {b}"
    needle = f"So {e} = {result}."
    if rng.random() < 0.5:
        return ask("steps", key, rng.choice(FORMS["steps"]).format(e=e), answer, needle)
    forms = FORMS["add" if sign == "+" else "subtract"]
    short = sum_answer(a, b) if sign == "+" else difference_answer(a, b)
    first = (("user", rng.choice(forms).format(a=a, b=b)), ("assistant", short))
    return Example(
        "steps", (key,), (*first, ("user", rng.choice(FORMS["how"])), ("assistant", answer)), (needle,)
    )


def chained(rng: Random) -> Example:
    """Return an example of a sum to which one more number is added."""
    plain = add(rng)
    total, c = int(plain.needles[0].split("= ")[1].rstrip(".")), rng.randint(1, 9)
    form = rng.choice(("Now add {c}.", "Add {c} to that.", "And plus {c}?", "And {c} more?"))
    answer = f"{total} + {c} = {total + c}."
    return Example(
        "chained sums",
        (*plain.keys, f"chain:{total}:{c}"),
        (*plain.turns, ("user", form.format(c=c)), ("assistant", answer)),
        (answer,),
    )


def word_problem(rng: Random) -> Example:
    """Return an example of a sum or difference that is told as a small event."""
    name, things = rng.choice(lex.GIRLS + lex.BOYS), rng.choice(lex.PLURALS)
    a, b = rng.randint(10, 60), rng.randint(2, 9)
    if rng.random() < 0.5:
        verb = rng.choice(("finds", "buys", "gets"))
        sign, result, tail = "+", a + b, f"{verb} {b} more"
    else:
        verb = rng.choice(("gives away", "loses", "sells"))
        sign, result, tail = "-", a - b, f"{verb} {b} of them"
    question = rng.choice(
        ("How many {t} does {n} have now?", "How many {t} are there now?", "How many {t} does {n} have then?")
    ).format(t=things, n=name)
    return ask(
        "word problems",
        f"problem:{a}:{sign}:{b}",
        f"{name} has {a} {things} and {tail}. {question}",
        f"{a} {sign} {b} = {result}, so {name} has {result} {things} now.",
        f"has {result} {things}",
    )


def count(rng: Random) -> Example:
    """Return an example of counting up or down, by one, two, five or ten."""
    step = rng.choice((1, 1, 1, 1, 2, 5, 10))
    a = 0 if step > 2 else rng.choice((1, 1, rng.randint(0, 60)))
    b = a + step * rng.randint(3, 24 if step == 1 else 9)
    by = "" if step == 1 else rng.choice((f" by {step}", f" in steps of {step}"))
    numbers = list(range(a, b + 1, step))
    if step == 1 and rng.random() < 0.3:
        a, b, numbers = b, a, numbers[::-1]
    forms = [
        "Count from {a} to {b}{by}.",
        "Can you count from {a} to {b}{by}?",
        "Please count from {a} to {b}{by}.",
    ]
    forms += ["Count down from {a} to {b}."] if a > b else ["Count up from {a} to {b}{by}."]
    forms += ["Count to {b}."] if a == 1 and not by else []
    words = dict(enumerate(lex.NUMBER_WORDS))
    last = words.get(b, str(b)) if a == 1 and rng.random() < 0.3 else str(b)
    return ask(
        "counting",
        f"count:{a}:{b}:{step}",
        rng.choice(forms).format(a=a, b=last, by=by),
        ", ".join(map(str, numbers)) + ".",
    )


def compare(rng: Random) -> Example:
    """Return an example of comparing two or several numbers."""
    a, b = rng.sample(range(100), 2)
    words, pick = rng.choice(((("bigger", "larger", "greater"), max), (("smaller", "less"), min)))
    word = rng.choice(words)
    if rng.random() < 0.3:
        numbers = rng.sample(range(100), rng.randint(3, 5))
        name = "largest" if pick is max else "smallest"
        text = ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"
        return ask(
            "comparison",
            f"most:{name}:{text}",
            f"What is the {name} of {text}?",
            f"The {name} number is {pick(numbers)}.",
        )
    key = pair_key("compare", a, b)
    if rng.random() < 0.3:
        says = "Yes" if pick(a, b) == a else "No"
        return ask(
            "comparison",
            key,
            f"Is {a} {word} than {b}?",
            f"{says}, {pick(a, b)} is {word} than {b if says == 'Yes' else a}.",
        )
    form = rng.choice(
        ("Which is {w}, {a} or {b}?", "Which number is {w}: {a} or {b}?", "What is {w}, {a} or {b}?")
    )
    other = a if pick(a, b) == b else b
    return ask("comparison", key, form.format(w=word, a=a, b=b), f"{pick(a, b)} is {word} than {other}.")


def number_facts(rng: Random) -> Example:
    """Return an example about even and odd, the number before or after, or sorting."""
    n, choice = rng.randint(1, 98), rng.random()
    if choice < 0.3:
        answer = f"{n} is {'odd' if n % 2 else 'even'}."
        form = rng.choice(("Is {n} even or odd?", "Is {n} odd or even?", "Is the number {n} even?"))
        return ask("number facts", f"parity:{n}:{form}", form.format(n=n), answer)
    if choice < 0.6:
        word, value = rng.choice((("after", n + 1), ("before", n - 1)))
        return ask(
            "number facts",
            f"{word}:{n}",
            f"Which number comes {word} {n}?",
            f"The number {value} comes {word} {n}.",
        )
    numbers = rng.sample(range(100), rng.randint(3, 5))
    text = ", ".join(map(str, numbers))
    form = rng.choice(("Sort these numbers: {}.", "Put these numbers in order: {}.", "Sort {}."))
    return ask("number facts", f"sort:{text}", form.format(text), ", ".join(map(str, sorted(numbers))) + ".")


NUMBER_KINDS: tuple[tuple[Kind, float], ...] = (
    (add, 9.0),
    (subtract, 9.0),
    (times, 2.0),
    (steps, 3.5),
    (chained, 2.0),
    (word_problem, 3.0),
    (count, 2.5),
    (compare, 2.5),
    (number_facts, 2.5),
)
