"""Data-parallel ranks of a real model, by vLLM's option, are replicas with equal answers."""

import re

import httpx

from tests.live import START_S, live


def test_data_parallel_ranks_of_a_real_model_are_replicas() -> None:
    """As many as the option says; each has its part of the requests, and answers as the other."""
    with live("sundog", "serve", "--port", "0", "-dp", "2", "--num-gpu-blocks", "200", "--debug") as server:
        server.until_it_says("2 replicas")
        texts = {server.complete(max_tokens=8).json()["choices"][0]["text"] for _ in range(4)}
        assert len(texts) == 1 and texts != {""}
        text = httpx.get(f"{server.url}/metrics", timeout=START_S).text
        served = re.findall(r'^vllm:generation_tokens_total{.*engine="(\d)".*} ([\d.]+)$', text, re.M)
        assert {engine: float(tokens) for engine, tokens in served} == {"0": 16, "1": 16}
        server.assert_sound()
