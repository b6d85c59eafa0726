"""`sundog serve --quantization` for operators and clients."""

import pytest

from tests import warm
from tests.runtime.test_serve import chat, sundog_serve


def test_the_embedded_model_still_answers_in_8_bits() -> None:
    with sundog_serve("--quantization", "int8") as server:
        assert "Sundog" in chat(server.client, "What is Sundog?")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--quantization", "fp8"], "--quantization is fp8: the torch backend makes int8 and int4"),
        (["--quantization", "int4", "--dtype", "float32"], "--quantization int4 needs weights in bfloat16"),
    ],
)
def test_what_cannot_be_quantised_is_refused_in_one_line(options: list[str], reason: str) -> None:
    done = warm.run("sundog", "serve", "--port", "0", *options)
    assert done.returncode == 2
    assert reason in done.stderr and done.stderr.count("\n") == 1
