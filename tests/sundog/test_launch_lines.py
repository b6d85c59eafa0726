"""vLLM's launch lines: options without effect are accepted and named; a model may have several names."""

import httpx

from tests.live import live


def test_a_launch_line_of_vllms_serves_under_every_name() -> None:
    line = "--served-model-name first second --enforce-eager --swap-space 4 --disable-log-requests --port 0"
    with live("sundog", "emulate", "llama-3.1-8b", "--gpu", "h100", *line.split()) as server:
        for name, status in (("first", 200), ("second", 200), ("third", 404)):
            assert server.complete("x", model=name, max_tokens=2).status_code == status
        names = [each["id"] for each in httpx.get(f"{server.url}/v1/models").json()["data"]]
        assert names == ["first", "second"]
        assert server.stop() == 0
    said = "".join(server.said)
    assert "without effect here: --swap-space\n" in said
    assert "tokens in" not in said
