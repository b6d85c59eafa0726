"""The workloads whose traces lie in `traces/`, and how to write them again."""

from sim.trace.jsonl_rows import write_trace
from sim.workload.distributions import Diurnal, Gamma, Geometric, LogNormal, Poisson
from sim.workload.spec import Sessions, SystemPrompts, Tenant, Workload

CHAT = Workload(
    300.0,
    Poisson(rate_per_s=2.0),
    prompt=LogNormal(mean=1155, median=1020, largest=4096),
    output=LogNormal(mean=211, median=129, largest=2048),
)
"""Chat like that of Azure's conversation trace of 2023: its mean lengths (1155 and 211 tokens), and
the medians 1020 and 129 that Splitwise (Patel et al., ISCA 2024, section III) states for it."""
CHAT_PROVENANCE = (
    "sim.workload.CHAT: Poisson arrivals, 2 requests/s for 5 minutes; log-normal lengths with the"
    " published means and medians of the Azure 2023 conversation trace, clipped to 4096 and 2048"
)
SESSIONS = Workload(
    600.0,
    Diurnal(rate_per_s=0.5, peak_to_trough=3.0, period_s=600.0),
    prompt=LogNormal(mean=300, median=150, largest=4096),
    output=LogNormal(mean=211, median=129, largest=2048),
    sessions=Sessions(
        turns=Geometric(mean=3.0, largest=12),
        followup=LogNormal(mean=120, median=60, largest=2048),
        pause_mean_s=30.0,
        pause_median_s=15.0,
        max_prompt_tokens=16384,
    ),
    system_prompts=SystemPrompts(tokens=512, count=4),
    tenants=(Tenant("paid", 0.3, priority=-1, slo_ttft_s=0.5), Tenant("free", 0.7)),
)
SESSIONS_PROVENANCE = (
    "sim.workload.SESSIONS: conversations of several turns, each after the answer to the last and a"
    " pause; a rate that rises threefold and falls again; four shared system prompts; two tenants."
    " Answers as in chat-poisson; everything else is our guess"
)
REASONING = Workload(
    300.0,
    Gamma(rate_per_s=1.0, cv=2.0),
    prompt=LogNormal(mean=550, median=200, largest=8192),
    output=LogNormal(mean=2631, median=1500, largest=32768),
)
REASONING_PROVENANCE = (
    "sim.workload.REASONING: long answers, mean 2631 tokens and at most 32768, as the DeepSeek-R1"
    " workload of ServeGen has; bursty arrivals (gamma gaps, cv 2); prompts are our guess"
)
SHIPPED = {
    "traces/chat-poisson-2rps-5min.jsonl.gz": (CHAT, CHAT_PROVENANCE),
    "traces/sessions-diurnal-10min.jsonl.gz": (SESSIONS, SESSIONS_PROVENANCE),
    "traces/reasoning-gamma-1rps-5min.jsonl.gz": (REASONING, REASONING_PROVENANCE),
}


def main() -> None:
    """Write them all, seed 0."""
    for path, (workload, provenance) in SHIPPED.items():
        num_requests = write_trace(
            path,
            workload.requests(0),
            provenance=provenance,
            seed=0,
            hash_block_tokens=workload.hash_block_tokens,
        )
        print(path, num_requests)


if __name__ == "__main__":
    main()
