"""Text that the embedded model is trained on, and the questions that test it.

Everything is drawn from the `random.Random` handed in: the same generator state gives the same text.  An
example is held out when a checksum of one of its keys says so, so no held-out question can reach the training
text, whatever the seed.
"""

import zlib
from dataclasses import dataclass
from random import Random

from tools.tiny_model import plots, stories
from tools.tiny_model.example import Example, Kind, Turn
from tools.tiny_model.questions import NUMBER_KINDS
from tools.tiny_model.topics import SYSTEM_PROMPTS
from tools.tiny_model.words import WORD_KINDS

HELD_OUT_ONE_IN = 12


@dataclass(frozen=True, slots=True)
class Document:
    """Chat, or a plain text if `turns` is empty."""

    turns: tuple[Turn, ...]
    text: str = ""


def is_held_out(example: Example) -> bool:
    """Return whether the example may only be used for evaluation."""
    return any(k and zlib.crc32(k.encode()) % HELD_OUT_ONE_IN == 0 for k in example.keys)


STORY = (
    "Tell me a story.",
    "Please tell me a story.",
    "Write a short story.",
    "Tell a story.",
    "Can you tell me a story?",
    "I would like to hear a story.",
    "Tell me another story.",
)
STORY_ABOUT = (
    "Tell me a story about {}.",
    "Write a story about {}.",
    "Tell a story about {}.",
    "Please tell me a story about {}.",
    "Can you write a short story about {}?",
    "Write a short story about {}.",
    "I would like to hear a story about {}.",
)
ANOTHER = ("Tell me another one.", "Another story, please.", "One more, please.", "Another one!")
QUESTION_FORMS = (
    "{text}\n\n{q}",
    "{text} {q}",
    "Read this story: {text}\n\nQuestion: {q}",
    "Here is a story. {text}\n\n{q}",
)
THEMES = {
    "lost": "something lost",
    "storm": "a storm",
    "race": "a race",
    "treasure": "a treasure",
    "birthday": "a birthday",
}


def story_subject(rng: Random, story: stories.Story) -> tuple[str, tuple[str, ...]]:
    """Return the subject that a request for a story names, and the words that the story must contain."""
    c = story.cast
    return rng.choice(
        (
            (stories.article(c.kind), (c.kind,)),
            (stories.article(c.kind), (c.kind,)),
            (f"{stories.article(c.kind)} named {c.hero}", (f"{c.kind} named {c.hero}",)),
            (f"{c.hero} the {c.kind}", (f"{c.kind} named {c.hero}",)),
            (f"{stories.article(c.kind)} and {stories.article(c.helper_kind)}", (c.kind, c.helper_kind)),
            (f"{stories.article(c.colour)} {c.thing}", (f"{c.colour} {c.thing}",)),
            (f"{stories.article(c.kind)} and {stories.article(c.thing)}", (c.kind, c.thing)),
            (f"two friends named {c.hero} and {c.helper}", (c.hero, c.helper)),
            (THEMES[story.theme], ()),
        )
    )


def story_key(story: stories.Story) -> str:
    """Return the key of a story, made of its cast, so that no held-out cast occurs in training."""
    c = story.cast
    return f"story:{c.hero}:{c.kind}:{c.thing}"


def tell(rng: Random) -> Example:
    """Return an example in which a story is requested."""
    story = plots.draw_story(rng)
    question = rng.choice(STORY)
    needles: tuple[str, ...] = ()
    if rng.random() < 0.8:
        subject, needles = story_subject(rng, story)
        question = rng.choice(STORY_ABOUT).format(subject)
    turns = (("user", question), ("assistant", story.text))
    return Example("stories", (story_key(story),), turns, needles)


def story_questions(rng: Random) -> Example:
    """Return an example with a story, told by either side, and up to three questions about it."""
    story = plots.draw_story(rng)
    facts = rng.sample(story.facts, min(len(story.facts), rng.randint(1, 3)))
    pairs = [(rng.choice(forms), answer) for forms, answer in facts]
    turns: list[Turn] = []
    if rng.random() < 0.5:
        request = rng.choice(STORY_ABOUT).format(story_subject(rng, story)[0])
        turns += [("user", request), ("assistant", story.text)]
    else:
        form = rng.choice(QUESTION_FORMS)
        pairs[0] = (form.format(text=story.text, q=pairs[0][0]), pairs[0][1])
    for question, answer in pairs:
        turns += [("user", question), ("assistant", answer)]
    return Example("story questions", (story_key(story),), tuple(turns), (pairs[-1][1],))


STORY_KINDS: tuple[tuple[Kind, float], ...] = ((tell, 4.0), (story_questions, 4.5))
KINDS = (*NUMBER_KINDS, *WORD_KINDS, *STORY_KINDS)


def draw_example(rng: Random, held_out: bool = False, kind: Kind | None = None) -> Example:
    """Return an example of `kind`, by default of any kind, from the training or the held-out set."""
    if kind is None:
        kind = rng.choices([k for k, _ in KINDS], [w for _, w in KINDS])[0]
    while True:
        example = kind(rng)
        if is_held_out(example) == held_out:
            return example


def roughen(rng: Random, question: str) -> str:
    """Return the question as people type it: sometimes without capitals or marks, or with a please."""
    choice = rng.random()
    if choice < 0.10 and question[1:] == question[1:].lower():
        question = question.lower()
    elif choice < 0.15 and question[-1] in ".?":
        question = question[:-1]
    elif choice < 0.20 and question[-1] == "?":
        question = f"{question} Please tell me."
    elif choice < 0.25:
        question = rng.choice(("Hi! ", "Hello. ", "Please: ", "Hey, ", "OK. ")) + question
    return question


def draw_chat(rng: Random) -> Document:
    """Return a chat of one to four examples, sometimes with a system prompt."""
    turns: list[Turn] = []
    if rng.random() < 0.25:
        turns.append(("system", rng.choice(SYSTEM_PROMPTS)))
    for _ in range(rng.choice((1, 1, 1, 1, 2, 2, 3, 4))):
        example = draw_example(rng)
        turns += [(r, roughen(rng, t) if r == "user" else t) for r, t in example.turns]
        if example.kind == "stories" and rng.random() < 0.2:
            turns += [("user", rng.choice(ANOTHER)), ("assistant", draw_example(rng, kind=tell).turns[-1][1])]
    return Document(tuple(turns))


def draw_document(rng: Random) -> Document:
    """Return a chat or, in one case of twelve, a story without a chat around it."""
    if rng.random() < 1 / 12:
        return Document((), draw_example(rng, kind=tell).turns[-1][1])
    return draw_chat(rng)
