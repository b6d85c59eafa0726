"""Both engines of a request that is prefilled on one and decoded on another get all of its fields."""

from dataclasses import fields
from typing import Any

from sundog.actors.core.params.sampling import Adapter, Sampling
from sundog.actors.core.request import Begun, Submit
from sundog.actors.core.routers.fleet_state import FleetState
from sundog.actors.router.handovers import Handovers, _second_leg

BEGUN = Begun(2, None, has_run=True, first_token_s=1.0, last_token_s=2.0)


OTHERS: dict[str, Any] = {
    "prompt_token_ids": (1, 2),
    "block_hashes": (b"a",),
    "sampling": Sampling(temperature=0.5),
    "adapter": Adapter("x", "y"),
    "trace_headers": (("traceparent", "x"),),
    "begun": BEGUN,
    "eos_token_id": 7,
    "predicted_tokens": 7,
    **dict.fromkeys(("slo_ttft_s", "slo_tpot_s", "slo_e2e_s", "retry_after_s", "reached_s"), 2.5),
}
"""Values of fields whose default does not tell their kind: compiled, a record checks it."""


def of_its_own(field: str, value: Any) -> Any:
    """Another value of the same kind, so that a field that was left out is seen."""
    return OTHERS.get(field, {bool: True, int: 7, str: "x", float: 2.5}.get(type(value), "y"))


def differing(one: Submit, other: Submit) -> dict[str, object]:
    names = [each.name for each in fields(Submit)]
    return {name: getattr(other, name) for name in names if getattr(one, name) != getattr(other, name)}


def test_both_legs_have_all_fields_of_the_request_but_those_that_say_which_leg_it_is() -> None:
    plain = Submit("r1", arrival_s=0.5, num_prompt_tokens=40, max_tokens=9)
    its_own = {each.name: of_its_own(each.name, getattr(plain, each.name)) for each in fields(Submit)}
    its_own |= {"has_remote_kv": False, "hands_over": False}
    submit = Submit(**its_own)
    assert len(differing(plain, submit)) == len(fields(Submit)) - 2
    router: Any = None
    first = Handovers(router, FleetState(lambda _: router, 0), [], None).first_leg(submit)
    assert differing(submit, first) == {"max_tokens": 1, "predicted_tokens": 1, "hands_over": True}
    assert differing(submit, _second_leg(submit)) == {"has_remote_kv": True}


def test_log_probabilities_of_a_prompt_come_with_the_first_leg_alone() -> None:
    asked = Submit("r1", 0.0, 40, 9, sampling=Sampling(prompt_logprobs=2))
    assert _second_leg(asked).sampling == Sampling()
