"""Policy inputs of a request, from body fields and from headers set by a gateway."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.live import EMULATED, Live, Stream, live

POLICY = "tests/actors/api/by_terms.py:ByTerms"
ONE_AT_A_TIME = ("--policy", POLICY, "--max-num-seqs", "1")


@pytest.fixture(scope="module", params=["torch", "simulate"])
def server(request: pytest.FixtureRequest) -> Iterator[Live]:
    command = ("sundog", "serve", "--port", "0") if request.param == "torch" else EMULATED
    with live(*command, *ONE_AT_A_TIME) as running:
        yield running
        assert running.health().json() == {"status": "ok"}


def order(server: Live, waiting: dict[str, tuple[dict[str, Any], dict[str, str]]]) -> list[str]:
    """The names of waiting requests in the order in which they are answered."""
    ended: list[str] = []

    def ask(name: str, fields: dict[str, Any], headers: dict[str, str]) -> None:
        body = {"prompt": "The fox", "max_tokens": 40, "ignore_eos": True, **fields}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        ended.append(name)

    # Long enough for all to wait, which torch's steps of half a millisecond make many tokens.
    busy = Stream(server, max_tokens=1500 if server.is_real else 250, ignore_eos=True)
    busy.begun.wait()
    with ThreadPoolExecutor(len(waiting)) as pool:
        for name, (fields, headers) in waiting.items():
            pool.submit(ask, name, fields, headers)
    busy.join()
    return ended


@pytest.mark.long(keep=1, reason="begins a server for each policy; `make test` begins one")
def test_a_policy_orders_by_what_requests_bring(server: Live) -> None:
    """Tenants first, then each kind of target, then predictions; a header goes before the field."""
    asked: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
        "plain": ({}, {}),
        "long": ({"predicted_tokens": 900}, {}),
        "short": ({}, {"X-Predicted-Tokens": "7"}),
        "slow": ({"slo_e2e_s": 60.5}, {}),
        "quick": ({}, {"X-Slo-Tpot-S": "0.5"}),
        "soon": ({"slo_ttft_s": 3}, {}),
        "bronze": ({"tenant": "b"}, {}),
        "gold": ({"tenant": "x"}, {"X-Tenant": "a"}),
    }
    assert order(server, asked) == ["gold", "bronze", "quick", "soon", "slow", "short", "long", "plain"]


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("fields", "headers", "param"),
    [
        ({"tenant": ""}, {}, "tenant"),
        ({"tenant": 7}, {}, "tenant"),
        ({"slo_ttft_s": -1}, {}, "slo_ttft_s"),
        ({"slo_tpot_s": "fast"}, {}, "slo_tpot_s"),
        ({"slo_e2e_s": 1e400}, {}, None),
        ({"predicted_tokens": 2**63}, {}, "predicted_tokens"),
        ({"predicted_tokens": 1.5}, {}, "predicted_tokens"),
        ({}, {"X-Tenant": "t" * 1025}, "X-Tenant"),
        ({"session": 7}, {}, "session"),
        ({}, {"X-Session-Id": "s" * 1025}, "X-Session-Id"),
        ({}, {"X-Slo-Ttft-S": "nan"}, "X-Slo-Ttft-S"),
        ({}, {"X-Slo-E2e-S": "-3"}, "X-Slo-E2e-S"),
        ({}, {"X-Slo-Tpot-S": ""}, "X-Slo-Tpot-S"),
        ({}, {"X-Predicted-Tokens": "1.5"}, "X-Predicted-Tokens"),
        ({}, {"X-Vllm-Priority": "9" * 30}, "X-Vllm-Priority"),
    ],
)
def test_terms_out_of_bounds_are_refused_by_name(
    torch_server: Live, fields: dict[str, Any], headers: dict[str, str], param: str | None
) -> None:
    """Of the field or the header."""
    body = json.dumps({"prompt": "x", **fields}).replace("Infinity", "1e400")
    headers = {"Content-Type": "application/json", **headers}
    answer = httpx.post(f"{torch_server.url}/v1/completions", content=body, headers=headers)
    assert answer.status_code == 400, answer.text
    assert (answer.json()["error"]["param"] or "").removeprefix("body.") in (param or "", "slo_e2e_s")
