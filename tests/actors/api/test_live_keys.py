"""API keys per client: identity, limits, and a changed key file at run time."""

import hashlib
import re
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from sundog.actors.api.keys import ApiKeys
from sundog.actors.config import ConfigError
from tests.live import EMULATED, live

FILE = f"""
[[key]]
key = "sk-alice"
tenant = "alice"
max_requests = 1
priority = -3

[[key]]
sha256 = "{hashlib.sha256(b"sk-bob").hexdigest()}"
"""


def test_a_key_says_who_asks_and_how_much_it_may(tmp_path: Path) -> None:
    """Whatever the client says; a key that is taken from the file is wrong from then on."""
    file = tmp_path / "keys.toml"
    file.write_text(FILE)
    with live(*EMULATED, "--api-keys", str(file), "--log-format", "json") as server:
        url, body = f"{server.url}/v1/completions", {"prompt": "Once", "max_tokens": 2, "tenant": "mallory"}

        def ask(key: str, **more: Any) -> httpx.Response:
            headers = {"Authorization": f"Bearer {key}"}
            return httpx.post(url, json=body | more, headers=headers)

        assert [ask(key).status_code for key in ("sk-alice", "sk-bob", "sk-eve")] == [200, 200, 401]
        server.until_it_says('"tenant": "alice"')
        server.until_it_says('"tenant": "mallory"')  # bob's key names none, so he may say one
        long = {"max_tokens": 4000, "ignore_eos": True, "stream": True}
        with httpx.stream(
            "POST", url, json=body | long, headers={"Authorization": "Bearer sk-alice"}
        ) as first:
            assert first.status_code == 200
            refused = ask("sk-alice")
            assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
            assert ask("sk-bob").status_code == 200
        while ask("sk-alice").status_code == 429:
            pass
        file.write_text("[[key]]\n")
        server.hurt(signal.SIGHUP)
        server.until_it_says("the old keys remain in use")
        file.write_text('[[key]]\nkey = "sk-bob"\n')
        server.hurt(signal.SIGHUP)
        server.until_it_says("are read again")
        assert [ask(key).status_code for key in ("sk-alice", "sk-bob")] == [401, 200]
        assert not [line for line in server.said if "sk-" in line]
        assert server.stop() == 0


OPEN = {
    *("/health", "/ready", "/readyz", "/ping", "/version", "/metrics"),
    *("/", "/docs", "/dashboard", "/openapi.json"),
}


@pytest.mark.wall_clock
async def test_every_route_needs_a_key_but_those_that_are_open_by_name(serving: Any) -> None:
    """By walking the route table; operators' routes need the admin key, and paths of no route a key, too."""
    async with serving(api_key="k", admin_key="a") as site, httpx.AsyncClient(base_url=site.url) as client:
        walked = set()
        for rule in site.app.url_map.iter_rules():
            path = re.sub(r"<[^>]*>", "x", rule.rule)
            walked.add(path)
            for method in rule.methods & {"GET", "POST", "PUT", "DELETE"}:
                answer = await client.request(method, path, headers={"Authorization": "Bearer wrong"})
                assert (answer.status_code != 401) == (path in OPEN), (method, path, answer.text)
        assert walked >= OPEN | {"/v1/completions", "/tokenize", "/load", "/dashboard/events", "/pause"}
        for path in ("/no/such/route", "/V1/models", "//v1/models", "/health/x", "/healthy"):
            assert (await client.get(path)).status_code == 401, path
        assert (await client.get("/health/", follow_redirects=True)).status_code == 200
        keyed = {"Authorization": "Bearer k"}
        assert (await client.get("/no/such/route", headers=keyed)).status_code == 404
        assert (await client.post("/pause", headers=keyed)).status_code == 401
        assert (await client.get("/is_paused", headers={"Authorization": "Bearer a"})).status_code == 200


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_answers_are_counted_under_their_key(tmp_path: Path) -> None:
    """With its tenant and its limit; without a key they are refused."""
    file = tmp_path / "keys.toml"
    file.write_text(FILE)
    with live(*EMULATED, "--api-keys", str(file), "--log-format", "json") as server:
        url, body = f"{server.url}/v1/completions", {"prompt": "Once", "max_tokens": 2, "tenant": "mallory"}
        alice = {"Authorization": "Bearer sk-alice"}
        assert httpx.post(url, json=body).status_code == 401
        assert httpx.post(url, json=body, headers=alice).status_code == 200
        server.until_it_says('"tenant": "alice"')
        long = body | {"max_tokens": 4000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", url, json=long, headers=alice) as first:
            assert first.status_code == 200
            assert httpx.post(url, json=body, headers=alice).status_code == 429


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "key"),
        ("[[key]]\n", "either key or sha256"),
        ('[[key]]\nkey = "a"\nsha256 = "' + "0" * 64 + '"\n', "either key or sha256"),
        ('[[key]]\nkey = "a"\n[[key]]\nkey = "a"\n', "the same key"),
        ('[[key]]\nkey = "a"\nlimit = 3\n', "key.0.limit"),
        ('[[key]]\nkey = "a"\nmax_requests = 0\n', "key.0.max_requests"),
        ('[[key]]\nsha256 = "abc"\n', "key.0.sha256"),
        ("not TOML", "is not TOML"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_place(tmp_path: Path, text: str, words: str) -> None:
    """And no key is in the words."""
    file = tmp_path / "keys.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        ApiKeys.read(file)
    assert str(file) in str(caught.value)
    with pytest.raises(ConfigError, match="cannot read"):
        ApiKeys.read(tmp_path / "none.toml")
