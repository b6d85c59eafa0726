"""The bodies of /score and /rerank: texts to compare."""

from typing import Annotated

from pydantic import Field, PlainValidator

from actors.api.bodies.bounds import INT32_MAX, MAX_PROMPTS, WHOLE
from actors.api.bodies.embedding import TruncatedBody
from actors.api.bodies.terms import TermsBody
from actors.api.errors import invalid
from actors.core.params.pooling import Pooling
from actors.core.params.sampling import Sampling

UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "chat_template_kwargs": ({},),
    "instruction": (),
    "max_tokens_per_doc": (0,),
    "max_tokens_per_query": (0,),
    "mm_processor_kwargs": ({},),
}
SCORES = ("/score", "/v1/score")
RERANKS = ("/rerank", "/v1/rerank", "/v2/rerank")
"""Where vLLM has them."""
PAIRS = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))
"""What the two sides are called, as in vLLM."""
RAW = Sampling(temperature=0.0, max_tokens=1, ignore_eos=True, pooling=Pooling(None, None))

TextsInput = str | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]


def as_text(value: object) -> str:
    """One text; raises ValueError."""
    if not isinstance(value, str):
        raise ValueError("must be a string")
    return value


def as_texts(value: object) -> tuple[str, ...]:
    """A text or a list of them; raises ValueError."""
    texts = [value] if isinstance(value, str) else value
    if isinstance(texts, list) and texts and all(isinstance(each, str) for each in texts):
        if len(texts) > MAX_PROMPTS:
            raise ValueError(f"has {len(texts)} texts; at most {MAX_PROMPTS} are allowed")
        return tuple(texts)
    raise ValueError("must be a string or a list of strings that is not empty")


Text = Annotated[str, PlainValidator(as_text, json_schema_input_type=str)]
Texts = Annotated[tuple[str, ...], PlainValidator(as_texts, json_schema_input_type=TextsInput)]


class ScoreBody(TruncatedBody, TermsBody):
    """Two sides: one text against each of the other side, or as many on either."""

    queries: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None
    text_1: Texts | None = None
    text_2: Texts | None = None

    def sides(self) -> tuple[tuple[str, ...], tuple[str, ...], str]:
        """Both, and what the second is called; the first may have one text for all of it. Raises 400."""
        for first, second in PAIRS:
            left, right = getattr(self, first), getattr(self, second)
            if left is None or right is None:
                continue
            names = dict.fromkeys(name for pair in PAIRS for name in pair)
            more = next((name for name in names if name not in (first, second) and getattr(self, name)), None)
            if more is not None:
                raise invalid(f"{first} and {second} are compared: leave out {more}.", more)
            if len(left) not in (1, len(right)):
                message = f"{first} has {len(left)} texts and {second} {len(right)}: give one, or as many."
                raise invalid(message, first)
            return left, right, second
        named = ", ".join(" and ".join(pair) for pair in PAIRS)
        raise invalid(f"Give two sides to compare: {named}.", "text_1")


class RerankBody(TruncatedBody, TermsBody):
    """A query, and documents to be put in the order of their likeness to it."""

    query: Text
    documents: Texts
    top_n: Annotated[int, Field(ge=0, le=INT32_MAX), WHOLE] = 0
    """How many to show; 0 shows all."""
