"""TLS, limits and origins as options of `sundog serve`."""

import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest
import trustme
from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived, StreamEnded

from tests import warm
from tests.live import EMULATED, live
from tests.patience import HANGS_S

SERVED = ("sundog", "serve", "--port", "0")


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


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize(
    "command",
    [EMULATED, pytest.param(SERVED, marks=pytest.mark.long(reason="loads a model"))],
    ids=["emulate", "serve"],
)
def test_openssl_talks_http2_with_a_self_signed_certificate(command: tuple[str, ...], tmp_path: Path) -> None:
    """`openssl s_client -alpn h2` agrees on it, and what goes through it is answered in HTTP/2."""
    if command is SERVED:
        pytest.importorskip("torch", reason="the engine extra is not installed")
    key, cert = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    asked = ("-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost")
    made = ("openssl", "req", *asked, "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert)
    subprocess.run(made, check=True, capture_output=True)
    with live(*command, "--ssl-certfile", cert, "--ssl-keyfile", key) as server:
        at = ("-connect", f"127.0.0.1:{server.port}", "-CAfile", cert, "-verify_return_error")
        client = ("openssl", "s_client", "-alpn", "h2", *at)
        said = subprocess.run(client, input=b"", check=True, capture_output=True, timeout=HANGS_S).stdout
        assert b"ALPN protocol: h2" in said
        assert answered_in_http2((*client, "-quiet")) == ("200", b'{"status":"ok"}')
        assert server.stop() == 0


def answered_in_http2(client: tuple[str, ...]) -> tuple[str, bytes]:
    """Ask for /health in HTTP/2 through the pipes of a process; returns the status and the body."""
    connection, status, body = H2Connection(), "", b""
    connection.initiate_connection()
    path = [(":method", "GET"), (":scheme", "https"), (":authority", "x"), (":path", "/health")]
    connection.send_headers(1, path, end_stream=True)
    pipe = subprocess.PIPE
    with subprocess.Popen(client, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, bufsize=0) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            while not process.stdin.closed:
                process.stdin.write(connection.data_to_send())
                data = process.stdout.read(65_536)
                assert data, "the connection ends before the answer"
                for event in connection.receive_data(data):
                    if isinstance(event, ResponseReceived):
                        status = dict(event.headers)[b":status"].decode()
                    elif isinstance(event, DataReceived):
                        body += event.data
                    elif isinstance(event, StreamEnded):
                        process.stdin.close()
        finally:
            process.kill()
    return status, body


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_half_of_what_a_door_needs_is_refused_before_anything_is_loaded() -> None:
    """In one line that names the option."""
    assert "--ssl-certfile nowhere.pem: No such file" in refused("--ssl-certfile", "nowhere.pem")
    assert "--ssl-keyfile is k" in refused("--ssl-keyfile", "k")
    assert "--allowed-origins is example.com" in refused("--allowed-origins", "example.com")
    assert "--h11-max-header-count is 0" in refused("--h11-max-header-count", "0")
    assert "--stream-interval is 0" in refused("--stream-interval", "0")
    assert "--timeout-keep-alive is 0" in refused("--timeout-keep-alive", "0")
