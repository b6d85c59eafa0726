"""A request that kills an engine process is not sent to a second one (`docs/fates.md`, law P9)."""

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the engine extra is not installed")

from tests.live import Stream, live

POISON = 777
SERVE = ("tests.runtime.worker.poisoned", "serve", "--port", "0", "--max-num-seqs", "2", "--debug")


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("fields", [{}, {"n": 2, "temperature": 1}], ids=["one", "two choices"])
def test_a_request_that_kills_its_engine_costs_one_crash(
    fields: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client gets one error; a stream beside it ends with an error; who had waited is answered whole."""
    monkeypatch.setenv("SUNDOG_TEST_POISON", str(POISON))
    monkeypatch.setenv("SUNDOG_TEST_GATE", str(gate := tmp_path / "gate"))
    with live(*SERVE) as server:
        plain = server.complete("The fox", max_tokens=20).json()["choices"][0]["text"]
        beside = Stream(server, prompt="The fox", max_tokens=300, ignore_eos=True)
        beside.begun.wait()
        poison = Stream(server, prompt=[5, POISON, 6], max_tokens=20, **fields)
        poison.accepted.wait()
        waiting = [Stream(server, prompt="The fox", max_tokens=20) for _ in range(4)]
        for stream in waiting:
            stream.accepted.wait()
        gate.touch()
        assert [stream.text for stream in waiting] == [plain] * 4
        for lost in (beside, poison):
            errors = [event["error"] for event in lost.whole() if "error" in event]
            assert len(errors) == 1 and "engine failed" in errors[0]["message"], lost.events
        assert not any("choices" in event for event in poison.whole())
        said = "".join(server.said)
        assert said.count("engine 0 crashed (1 in succession)") == said.count("in succession") == 1, said
        assert "SIGSEGV" in said and "Traceback" not in said
        answer = server.complete([5, POISON, 6], max_tokens=4, **fields)
        assert answer.status_code == 503, answer.text
        assert "engine failed" in answer.json()["error"]["message"]
        server.until_health(200)
        assert server.complete("The fox", max_tokens=20).json()["choices"][0]["text"] == plain
        assert server.stop() == 0
