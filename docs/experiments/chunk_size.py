"""Chunk size against TTFT and TPOT: `python docs/experiments/chunk_size.py`."""

from shown import HERE, bars, save, show

import sundog


def main() -> None:
    """Vary the token budget of a step, which is the largest chunk of a prompt."""
    found = sundog.sweep(
        HERE / "chunk_size.toml",
        vary={"max_num_batched_tokens": [256, 512, 1024, 2048, 8192, 16384]},
        metrics=["ttft_s.mean", "tpot_s.p99", "tpot_s.mean", "output_tokens_per_s"],
        replications=5,
    )
    show(found)
    save(bars(found, "ttft_s.mean", "tpot_s.p99"))


if __name__ == "__main__":
    main()
