"""Raw HTTP requests for tests."""

import json

GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
JSON = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
CLOSE = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def post(body: bytes, path: str = "/v1/completions") -> bytes:
    return JSON.replace(b"/v1/completions", path.encode()) + b"Content-Length: %d\r\n\r\n" % len(body) + body


def completion(**fields: object) -> bytes:
    return post(json.dumps({"prompt": "x", **fields}).encode())
