"""Figures in the text of docs/papers.md and docs/offloading.md are those of the replays named there."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import warm
from tests.test_layers import ROOT

POLICIES = "docs/policies"
CHATS = "traces/chat-poisson-2rps-5min.jsonl.gz"
FULL = (CHATS, "--gpu", "h100", "--request-rate", "40")
MEMORY = (
    CHATS,
    "--gpu",
    "h100",
    "--request-rate",
    "20",
    "--num-gpu-blocks",
    "2000",
    "--max-model-len",
    "16384",
)
BESIDE = ("--gpu", "h100", "--max-num-seqs", "64", "--max-num-batched-tokens")
SHARED = (
    "tenants",
    "--gpu",
    "h100",
    "--max-num-seqs",
    "32",
    "--num-gpu-blocks",
    "5000",
    "--max-model-len",
    "16384",
)
UNCACHED = "--no-enable-prefix-caching"
LEAST = ("--policy", f"{POLICIES}/least_recompute.py:LeastRecompute")


class Claim(NamedTuple):
    """Sentences of a page, with `{run:path:format}` for a figure, and the replays that give them.

    A first word without a dot names a workload of docs/policies/. A path that ends in `*1000` is for
    milliseconds.
    """

    page: str
    runs: dict[str, tuple[str, ...]]
    sentences: tuple[str, ...]


CLAIMS = {
    "FastServe": Claim(
        "papers.md",
        {
            "own": (
                *(*FULL, "--max-num-seqs", "600", "--policy"),
                f"{POLICIES}/fast_serve.py:FastServe:batch=32",
            ),
            "fcfs": (*FULL, "--max-num-seqs", "32"),
            "more": (*FULL, "--max-num-seqs", "256"),
        },
        (
            "the mean latency per token falls from {fcfs:normalized_latency_s.mean*1000:.0f} to"
            " {own:normalized_latency_s.mean*1000:.0f} ms, the mean time to the first token from"
            " {fcfs:ttft_s.mean:.0f} to {own:ttft_s.mean:.1f} s",
            "256 running requests has {more:normalized_latency_s.mean*1000:.0f} ms, too, and first"
            " tokens after"
            " {more:ttft_s.mean:.1f} s",
        ),
    ),
    "Andes": Claim(
        "papers.md",
        {
            "own": (
                *("readers", *BESIDE, "8192", "--preempt-for-priority"),
                *("--policy", f"{POLICIES}/andes.py:Andes:lead_s=5"),
            ),
            "fcfs": ("readers", *BESIDE, "8192"),
        },
        (
            "{fcfs:slo_attainment:.0%} of requests keep their limits (2 s to the first token, 8"
            " tokens/s) under"
            " fcfs, {own:slo_attainment:.0%} under Andes; documents, which have no limit, wait"
            " {own:tenants.documents.ttft_mean_s:.0f} s instead of {fcfs:tenants.documents.ttft_mean_s:.0f}",
        ),
    ),
    "SOLA": Claim(
        "papers.md",
        {
            "own": ("steady", *BESIDE, "8192", "--policy", f"{POLICIES}/sola.py:Sola"),
            "fcfs": ("steady", *BESIDE, "8192"),
            "fixed": ("steady", *BESIDE, "512"),
        },
        (
            "first tokens come after {own:tenants.readers.ttft_mean_s*1000:.0f} ms on average instead of"
            " {fcfs:tenants.readers.ttft_mean_s*1000:.0f}, and the longest 1 % of gaps shrinks from"
            " {fcfs:itl_s.p99*1000:.0f} to {own:itl_s.p99*1000:.0f} ms",
            "{own:tenants.readers.slo_attainment:.0%} of readers do with it and"
            " {fcfs:tenants.readers.slo_attainment:.0%} without it, and"
            " {fixed:tenants.readers.slo_attainment:.0%} with a fixed budget of 512 tokens a step,"
            " whose first"
            " tokens come after {fixed:tenants.readers.ttft_mean_s*1000:.0f} ms",
        ),
    ),
    "learning to rank": Claim(
        "papers.md",
        {
            name: (
                *(*FULL, "--max-num-seqs", "32", "--policy"),
                *(f"{POLICIES}/learned_rank.py:LearnedRank", "--predictor", name),
            )
            for name in ("noisy", "oracle")
        }
        | {"fcfs": (*FULL, "--max-num-seqs", "32")},
        (
            "falls from {fcfs:e2e_s.mean:.1f} s (fcfs) to {noisy:e2e_s.mean:.1f} s with `--predictor"
            " noisy` (a"
            " log-normal error of sigma 0.5) and {oracle:e2e_s.mean:.1f} s with the truth",
        ),
    ),
    "Deficit": Claim(
        "papers.md",
        {
            "own": (*SHARED, "--policy", f"{POLICIES}/deficit.py:Deficit"),
            "vtc": (*SHARED, "--policy", "vtc"),
            "fcfs": SHARED,
        },
        (
            "Where fcfs hits {fcfs:prefix_hit_rate:.0%} and `vtc` {vtc:prefix_hit_rate:.0%} of"
            " prompt tokens, it"
            " hits {own:prefix_hit_rate:.0%}; the greedy tenant's first token comes after"
            " {own:tenants.greedy.ttft_mean_s:.1f} s ({vtc:tenants.greedy.ttft_mean_s:.1f} under `vtc`), the"
            " modest one's after {own:tenants.modest.ttft_mean_s:.1f} s"
            " ({vtc:tenants.modest.ttft_mean_s:.1f} under `vtc`, {fcfs:tenants.modest.ttft_mean_s:.1f} under"
            " fcfs)",
        ),
    ),
    "the recompute tax": Claim(
        "papers.md",
        {
            "own": (*MEMORY, UNCACHED, *LEAST),
            "fcfs": (*MEMORY, UNCACHED),
            "cached": (*MEMORY, *LEAST),
            "tail": MEMORY,
            "swap": (*MEMORY, "--kv-offloading-size", "2"),
        },
        (
            "without a prefix cache {own:recomputed_tokens:,} tokens are computed again instead of"
            " {fcfs:recomputed_tokens:,}",
            "{cached:recomputed_tokens:,} instead of {tail:recomputed_tokens:,}: blocks of a victim"
            " stay in the"
            " cache, and small victims are preempted more often ({cached:num_preemptions} times instead of"
            " {tail:num_preemptions})",
            "and {swap:recomputed_tokens:,} tokens are computed again",
        ),
    ),
    "swapping": Claim(
        "offloading.md",
        {
            "none": (*MEMORY, UNCACHED),
            "cache": MEMORY,
            "host": (*MEMORY, "--kv-offloading-size", "2"),
            "slow": (*MEMORY, "--kv-offloading-size", "64", "--kv-offloading-gb-per-s", "5"),
        },
        tuple(
            f"| {{{name}:num_preemptions}} | {{{name}:recomputed_tokens:,}} | {loaded}|"
            f" {{{name}:ttft_s.mean:.1f}} |"
            f" {{{name}:tpot_s.p99*1000:.1f}} |"
            for name, loaded in (("none", ""), ("cache", ""), ("host", "… "), ("slow", "… "))
        ),
    ),
}


def value_of(summary: Any, path: str) -> Any:
    keys, _, factor = path.partition("*")
    for key in keys.split("."):
        summary = summary[key]
    return summary * float(factor) if factor else summary


def said(sentence: str, summaries: dict[str, Any]) -> str:
    """The sentence with its figures: percentages as the pages write them, `24 %`."""

    def figure(found: "re.Match[str]") -> str:
        name, path, spec = found[1], found[2], found[3] or ""
        return format(value_of(summaries[name], path), spec).replace("%", " %")

    return re.sub(r"\{(\w+):([\w.*]+)(?::([^}]+))?\}", figure, sentence)


def stands(sentence: str, page: str) -> bool:
    """Whether a page has the sentence, however its lines are broken; … is any cell of a table."""
    pattern = re.escape(" ".join(sentence.split())).replace("…", r"[^|]*?")
    return re.search(pattern, " ".join(page.split())) is not None


@pytest.mark.long(keep=2, reason="replays of other pages' figures, each like the first", moderate=True)
@pytest.mark.parametrize("name", ["swapping", *(name for name in CLAIMS if name != "swapping")])
def test_the_figures_of_a_page_are_those_of_its_replays(name: str, tmp_path: Path) -> None:
    claim, summaries = CLAIMS[name], dict[str, Any]()
    for run, words in claim.runs.items():
        trace = words[0]
        if "." not in trace:
            trace = str(tmp_path / f"{trace}.jsonl")
            warm.run("sundog", "workload", f"{POLICIES}/{words[0]}.toml", "-o", trace, folder=ROOT)
        done = warm.run("sundog", "replay", trace, *words[1:], "--json", folder=ROOT)
        assert done.returncode == 0, done.stderr
        summaries[run] = json.loads(done.stdout)
    page = (ROOT / "docs" / claim.page).read_text(encoding="utf-8")
    expected = [said(sentence, summaries) for sentence in claim.sentences]
    assert not [sentence for sentence in expected if not stands(sentence, page)]


def test_a_figure_that_moved_would_be_found() -> None:
    """However the page breaks its lines."""
    sentence = said(
        "{a:x.mean*1000:.0f} ms of {a:share:.0%}, | {a:n:,} | … |",
        {"a": {"x": {"mean": 0.0126}, "share": 0.239, "n": 1234}},
    )
    assert sentence == "13 ms of 24 %, | 1,234 | … |"
    assert stands(sentence, "it takes 13 ms\nof 24 %, | 1,234 | 99 | and so on")
    assert not stands(sentence, "it takes 12 ms of 24 %, | 1,234 | 99 |")
    assert not stands(sentence, "it takes 13 ms of 24 %, | 1,234 |")
