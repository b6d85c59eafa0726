"""TLS, limits and origins as options of `sundog serve`."""

import socket
import ssl
from pathlib import Path

import httpx
import trustme

from tests import warm
from tests.live import EMULATED, live


def refused(*options: str) -> str:
    """What the command says of options that it does not take, in one line."""
    ended = warm.run(*EMULATED, *options)
    assert ended.returncode == 2 and "Traceback" not in ended.stderr, ended
    return ended.stderr


def test_a_server_of_the_command_line_speaks_https(tmp_path: Path) -> None:
    """With one file for certificate and key, and pages that may call."""
    authority, pem = trustme.CA(), tmp_path / "server.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(pem))
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    options = ("--ssl-certfile", str(pem), "--allowed-origins", '["https://a.b"]', "--stream-interval", "3")
    with live(*EMULATED, *options) as server, httpx.Client(verify=trusting) as client:
        assert server.url.startswith("https://")
        body = {"prompt": "x", "max_tokens": 3, "stream": True}
        answer = client.post(f"{server.url}/v1/completions", json=body, headers={"Origin": "https://a.b"})
        assert answer.text.endswith("data: [DONE]\n\n")
        assert answer.headers["access-control-allow-origin"] == "https://a.b"
        assert client.get(f"{server.url}/health").status_code == 200
        with httpx.Client(verify=trusting, http2=True) as multiplexing:
            answer = multiplexing.post(f"{server.url}/v1/completions", json=body)
            assert answer.http_version == "HTTP/2" and answer.text.endswith("data: [DONE]\n\n")
        trusting.set_alpn_protocols(["h2"])
        with (
            socket.create_connection(("127.0.0.1", server.port)) as plain,
            trusting.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            assert secured.selected_alpn_protocol() == "h2"
        assert server.stop() == 0


def test_half_of_what_a_door_needs_is_refused_before_anything_is_loaded() -> None:
    """In one line that names the option."""
    assert "--ssl-certfile nowhere.pem: No such file" in refused("--ssl-certfile", "nowhere.pem")
    assert "--ssl-keyfile is k" in refused("--ssl-keyfile", "k")
    assert "--allowed-origins is example.com" in refused("--allowed-origins", "example.com")
    assert "--h11-max-header-count is 0" in refused("--h11-max-header-count", "0")
    assert "--stream-interval is 0" in refused("--stream-interval", "0")
    assert "--timeout-keep-alive is 0" in refused("--timeout-keep-alive", "0")
