"""The recompute tax, by which request is preempted: `python docs/experiments/victims.py`."""

from shown import HERE, bars, save, show

import sundog


def swept(workload: str, num_gpu_blocks: int) -> sundog.SweepResult:
    """Let KV blocks run out, and preempt the latest request or the one that loses least."""
    return sundog.sweep(
        HERE / workload,
        vary={"enable_prefix_caching": [False, True], "victim": ["policy", "least-recompute"]},
        metrics=["recompute_tax", "ttft_s.mean", "num_preemptions"],
        by="enable_prefix_caching",
        replications=6,
        num_gpu_blocks=num_gpu_blocks,
        max_model_len=16384,
    )


def main() -> None:
    """Once where requests differ much, once where they are alike."""
    found = swept("victims.toml", 1600)
    print("short prompts with long answers, beside documents")
    show(found)
    print("prompts and answers of 256 to 768 tokens")
    show(swept("victims_alike.toml", 1500))
    save(bars(found, "recompute_tax", "num_preemptions"))


if __name__ == "__main__":
    main()
