"""Sampling fields through HTTP: option table, bodies, docs page and server agree."""

import dataclasses
import re
from typing import Any

import pytest

from sundog.actors.api.bodies.sampling import SamplingBody, ShownBody, TermsBody
from sundog.actors.api.bodies.texts import CompletionBody
from sundog.actors.core.params.fields import SAMPLING_FIELDS
from sundog.actors.core.params.sampling import Sampling
from tests.actors.api.test_live_fields import complete, post
from tests.live import Live
from tests.test_layers import ROOT

EXAMPLES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "temperature": (0.7, (-0.1, 2.1, "warm", 10**400)),
    "top_k": (5, (-2, 2**31, 10**30)),
    "top_p": (1, (0, 1.1)),
    "min_p": (0.1, (-0.1, 1.1)),
    "seed": (2**63 - 1, (2**63, -(2**63) - 1, 10**30)),
    "repetition_penalty": (1.2, (0, 1e7)),
    "frequency_penalty": (2, (2.1, -2.1)),
    "presence_penalty": (-2, (2.1, -2.1)),
    "logit_bias": ({"5": 1000}, ({"x": 1}, {"5": "much"}, {"99999999": 1})),
    "allowed_token_ids": ([5, 6], ([], [-1], [10**8])),
    "bad_words": (["fox"], ([""], "fox")),
    "max_tokens": (3, (0, 2**31, 10**30, 10**4000)),
    "min_tokens": (2, (-1, 9, 2**31, 10**30)),
    "stop": (["x", "y"], ([""], ["x"] * 65)),
    "stop_token_ids": ([5], ([-1], [10**8])),
    "ignore_eos": (False, ("no",)),
    "repetition_detection": (
        {"max_pattern_size": 4, "min_count": 3},
        ({"max_pattern_size": 4}, {"min_pattern_size": 2}),
    ),
    "thinking_token_budget": (-1, (-2, 2**31)),
    "logprobs": (5, (21, -2)),
    "logprob_token_ids": ([], ([5], [-1])),
    "prompt_logprobs": (2, (21, -2)),
    "response_format": ({"type": "text"}, ({"type": "verse"},)),
    "structured_outputs": ({"choice": ["yes"]}, ({}, {"choice": []})),
}
"""A value of each field that is taken, and values that are refused."""


def test_every_field_of_a_body_has_a_row_and_examples() -> None:
    """A new one fails here until it has them; `n` and what is shown are described elsewhere."""
    others = {*TermsBody.model_fields, *ShownBody.model_fields, "n"}
    fields = {*SamplingBody.model_fields, *CompletionBody.model_fields} - others - {"prompt"}
    assert fields == SAMPLING_FIELDS.keys() == EXAMPLES.keys()
    named = {name for name, field in SAMPLING_FIELDS.items() if field.range is not None}
    assert named <= {each.name for each in dataclasses.fields(Sampling)}


def test_the_page_has_the_rows_of_the_table() -> None:
    """In its order, word for word."""
    page = (ROOT / "docs/sampling.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \| (.*) \|$", page, re.MULTILINE)[: len(SAMPLING_FIELDS)]
    assert rows == [
        (name, field.default, field.bounds, field.effect) for name, field in SAMPLING_FIELDS.items()
    ]


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_field_is_taken_within_its_bounds_and_refused_by_name_beyond(torch_server: Live, name: str) -> None:
    """By a model that computes."""
    good, bad = EXAMPLES[name]
    assert complete(torch_server, **{"temperature": 1, name: good})["choices"]
    for value in bad:
        refused = post(torch_server, "completions", **{"prompt": "Once", "max_tokens": 8, name: value})
        assert refused.status_code == 400, value
        assert name in refused.json()["error"]["message"], refused.text
