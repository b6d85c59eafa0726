"""Routed replicas on a server, checked by the server's journal."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from sundog.sim.explain.load import load
from sundog.sim.record.journal_rows import Chosen
from tests.live import EMULATED, live

PROMPTS = [f"Once upon a time there was a {name} who lived in a forest far away. " * 6 for name in "abc"]


def choices(
    tmp_path: Path, command: tuple[str, ...], router: str, asked: list[dict[str, Any]]
) -> list[Chosen]:
    """Where a server sends these requests, one after another."""
    folder = tmp_path / "record"
    options = ("--replicas", "3", "--router", router, "--record", str(folder))
    with live(*command, *options) as server:
        for each in asked:
            headers = each.pop("headers", {})
            body = {"prompt": PROMPTS[0], "max_tokens": 2, **each}
            answer = httpx.post(f"{server.url}/v1/completions", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
        assert server.stop() == 0
    return list(load(folder).choices.values())


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_sessions_stay_by_field_and_by_header(tmp_path: Path) -> None:
    """Emulated; a header goes before the field."""
    asked: list[dict[str, Any]] = [{"session": f"s{number % 6}"} for number in range(12)]
    asked += [{"session": "other", "headers": {"X-Session-Id": f"s{number}"}} for number in range(6)]
    went = [each.replica for each in choices(tmp_path, EMULATED, "session-affinity", asked)]
    assert went[:6] == went[6:12] == went[12:] and len(set(went)) > 1


TORCH = ("sundog", "serve", "--port", "0", "--num-gpu-blocks", "300")


@pytest.mark.parametrize(
    "command",
    [
        EMULATED,
        pytest.param(
            TORCH,
            marks=pytest.mark.long(
                rare=True, reason="starts two engines of torch; the emulated server has the law"
            ),
        ),
    ],
    ids=lambda c: c[4],
)
def test_prompts_go_where_they_are_cached(tmp_path: Path, command: tuple[str, ...]) -> None:
    """Each prompt comes back to the replica that says it has its blocks."""
    asked = [{"prompt": PROMPTS[number % 3]} for number in range(6)]
    found = choices(tmp_path, command, "weighted:prefix=1,load=0.1,index=events", asked)
    first, again = found[:3], found[3:]
    assert [each.replica for each in first] == [each.replica for each in again]
    assert all(each.num_hit_blocks for each in again) and first[0].num_hit_blocks == 0
