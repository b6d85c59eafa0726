"""Attacks of clients on a server, and four laws on client data with the place of their tests; SIGTERM
meanwhile.

1. Whatever foreign code raises at a client's data is the error of that request alone.
2. Its CPU, memory and wall time are bounded, and SIGTERM ends the server in the middle of it.
3. What is kept for a client is counted in bytes, per key, and has an owner.
4. No piece of the event loop works for more than 50 ms in bytes that a client chose.
"""

import ast
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sundog.runtime.serve import EMBEDDED_MODEL
from tests.live import EMULATED, Live, live
from tests.test_layers import ROOT

API, STRUCTURED = "tests/actors/api/", "tests/runtime/structured/"
TESTS = {
    "law 1: errors": API
    + "test_foreign_seams.py::test_what_foreign_code_raises_is_the_error_of_that_request_alone",
    "law 1: routes": API + "test_foreign_seams.py::test_what_foreign_code_raises_on_a_route_ends_no_door",
    "law 2: texts": "tests/runtime/test_long_texts.py::"
    "test_sigterm_while_a_long_text_is_tokenised_ends_the_server",
    # A long text has a process that can be ended. A shorter one, and a template, have a thread of the
    # server's with bounds of their own: 2^20 characters, CPU time, lengths. SIGTERM does not wait for it.
    "law 2: grammars, bodies, texts and templates in threads": "tests/test_attacks.py::"
    "test_sigterm_in_the_middle_of_a_clients_data_ends_the_server",
    "law 2: a template's time and memory": "tests/runtime/test_tokenizer.py::"
    "test_a_template_that_would_never_end_is_refused_in_time",
    "checkpoints at start": "tests/runtime/test_serve_refusals.py::test_a_refusal_at_load_is_one_line",
    "adapters while a server runs": "tests/runtime/test_hot_adapters.py::"
    "test_a_folder_that_cannot_be_served_is_one_400",
    "checkpoints' headers": "tests/runtime/test_loader.py::"
    "test_a_malicious_header_is_refused_in_one_line_for_models_and_adapters",
    "checkpoints that are programs": "tests/runtime/test_loader.py::"
    "test_pickles_are_refused_by_name_and_never_opened",
    "law 3: bodies": API
    + "test_live_client_data.py::test_the_bodies_of_one_key_leave_room_for_those_of_others",
    "law 3: what is stored": API
    + "test_live_client_data.py::test_what_is_kept_is_bounded_in_bytes_for_all_and_for_each_key",
    "law 4": API + "test_event_loop_law.py",
    "1 a panic": API
    + "test_live_client_data.py::test_a_panic_in_foreign_code_is_a_400_on_every_route_that_reads_text",
    "2 a schema without end": STRUCTURED
    + "test_served.py::test_what_hangs_or_crashes_the_compiler_is_a_bad_request",
    "3 another's responses": API + "test_live_client_data.py::test_a_stored_response_is_its_owners_alone",
    "4 chunks of line ends": API + "test_http1.py::test_chunks_of_line_ends_cost_what_other_bytes_do",
    "5 an offer to upgrade": API + "test_http1.py::test_a_body_beside_an_offer_to_upgrade_is_the_requests",
    "6 stored bytes": API
    + "test_live_client_data.py::test_what_is_kept_is_bounded_in_bytes_for_all_and_for_each_key",
    "7 grammars of one client": "tests/actors/front/test_long_prompts.py::"
    "test_eight_new_grammars_of_a_client_delay_anothers_by_one",
    "7 an engine's steps": "tests/actors/engine/test_compiler.py::"
    "test_requests_hold_their_grammars_until_they_end_and_wait_where_there_is_no_room",
    "9 bodies under way": API + "test_live_client_data.py::test_bodies_under_way_are_bounded_in_bytes",
    "10 uncounted work": API
    + "test_live_client_data.py::test_work_on_the_tokenizer_counts_as_an_answer_of_its_key",
    "8 no greeting": "tests/runtime/worker/test_greeting.py::"
    "test_processes_that_never_greet_end_the_start_under_load_timeout",
    "11 long ids": API + "test_live_client_data.py::test_no_line_of_the_log_grows_with_what_a_client_sends",
    "12 a template that loops": "tests/test_attacks.py::"
    "test_a_template_that_loops_is_a_400_while_others_are_answered",
    "13 100 Continue": API + "test_http1.py::test_a_body_that_waits_to_be_asked_for_is_asked_for",
    "14 half of a connection": API + "test_http1.py::test_a_client_that_half_closes_is_answered",
    "15 gzip": "tests/sim/trace/test_read.py::test_a_small_file_that_unzips_to_one_endless_line_is_refused",
    "15 biases": "tests/test_attacks.py::test_a_hundred_thousand_biases_are_refused_by_name",
    "16 code of a run": "tests/sundog/test_config_file.py::test_code_that_a_runs_file_names_is_not_run",
    "16 keys given twice": "tests/sim/trace/test_read.py::test_a_key_given_twice_is_refused_by_name",
}
"""Each attack or law, and a test of it; 13 and 14 are Hypercorn's limits, in docs/api.md."""


@pytest.mark.parametrize("name", TESTS)
def test_each_attack_and_each_law_has_its_test(name: str) -> None:
    file, _, function = TESTS[name].partition("::")
    tree = ast.parse(Path(ROOT, file).read_text(encoding="utf-8"))
    names = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }
    assert names and (not function or function in names), TESTS[name]


def test_no_attack_is_without_a_row() -> None:
    assert {int(name.split()[0]) for name in TESTS if name[0].isdigit()} == set(range(1, 17))
    assert {name[:5] for name in TESTS if name.startswith("law")} == {
        f"law {number}" for number in range(1, 5)
    }


@pytest.fixture(scope="module")
def emulated() -> Iterator[Live]:
    """An emulated server with little patience."""
    with live(*EMULATED, "--grace", "1") as server:
        yield server
        server.assert_sound()


def test_a_hundred_thousand_biases_are_refused_by_name(emulated: Live) -> None:
    """Each would be added again in every step."""
    refused = emulated.complete(max_tokens=1, logit_bias={str(token): 1 for token in range(100_000)})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["param"].removeprefix("body.") == "logit_bias" and "at most 16384" in error["message"]
    assert emulated.complete(max_tokens=1).status_code == 200


SPINS = (
    "{% if 'spin' in messages[0].content %}{% for a in range(1000) %}{% for b in range(1000) %}"
    "{% for c in range(1000) %}{% endfor %}{% endfor %}{% endfor %}{% endif %}"
    "{% if 'range' in messages[0].content %}{% for a in range(1000000000) %}{% endfor %}{% endif %}"
    "{{ messages[0].content }}"
)
"""A chat template that loops 10^9 times, where a client wants it to."""


@pytest.fixture(scope="module")
def spinning(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model with a template that loops."""
    folder = tmp_path_factory.mktemp("spinning") / "model"
    shutil.copytree(EMBEDDED_MODEL, folder)
    (folder / "chat_template.jinja").write_text(SPINS)
    return folder


def test_a_template_that_loops_is_a_400_while_others_are_answered(spinning: Path) -> None:
    """On each route that renders one; a long conversation has more time, and others do not wait for it."""
    with live("sundog", "serve", str(spinning), "--port", "0", "--grace", "1") as server:
        for content, words in (("spin", "takes too long"), ("range", "too large")):
            turns = [{"role": "user", "content": content}]
            for path, body in (
                ("/v1/chat/completions", {"messages": turns, "max_tokens": 1}),
                ("/v1/responses", {"input": turns, "max_output_tokens": 1}),
                ("/v1/messages", {"messages": turns, "max_tokens": 1, "model": "model"}),
                ("/tokenize", {"messages": turns}),
            ):
                refused = httpx.post(server.url + path, json=body, timeout=60)
                assert refused.status_code == 400, (path, refused.text)
                assert words in refused.text, (path, refused.text)
        long = threading.Thread(target=_work, args=(server, _chat("spin" * 150_000)), daemon=True)
        long.start()
        assert server.health().status_code == 200
        assert (
            httpx.post(server.url + "/v1/chat/completions", json=_chat("Hi"), timeout=60).status_code == 200
        )
        long.join()
        server.assert_sound()


def _chat(content: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 1}


HARD = {"json": {"type": "string", "allOf": [{"pattern": f".*[a-z]{{{size}}}.*"} for size in range(1, 40)]}}


WORK = {
    "a grammar": {"prompt": "Once", "max_tokens": 5, "structured_outputs": HARD},
    "a text in a thread": {"prompt": "a" * (2**20 - 1), "max_tokens": 1, "truncate_prompt_tokens": 9},
    "a template": _chat("spin" * 150_000),
}
"""Requests that keep a thread of the server's, or a process, at work."""


@pytest.mark.parametrize("seam", ["a body", "a body in chunks", *WORK])
def test_sigterm_in_the_middle_of_a_clients_data_ends_the_server(seam: str, spinning: Path) -> None:
    """Law 2: a body that does not end, and what takes a template, a tokenizer or a compiler seconds."""
    command = ("sundog", "serve", str(spinning), "--port", "0") if seam in WORK else EMULATED
    with (
        live(*command, "--grace", "1") as server,
        socket.create_connection(("127.0.0.1", server.port)) as client,
    ):
        length = b"Content-Length: 9000" if seam == "a body" else b"Transfer-Encoding: chunked"
        if seam in WORK:
            for _ in range(3):
                threading.Thread(target=_work, args=(server, WORK[seam]), daemon=True).start()
            time.sleep(0.5)  # whether it works by then or not, the server has to end
        else:
            head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            client.sendall(head + length + b"\r\n\r\n5\r\n")
            assert server.health().status_code == 200
        assert server.stop() == 0, server.said


def _work(server: Live, body: dict[str, object]) -> None:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    try:
        httpx.post(server.url + path, json=body, timeout=60)
    except httpx.HTTPError:  # its connection is cut
        return
