"""Head-of-line blocking, and what overtaking is worth: `python docs/experiments/head_of_line.py`."""

from shown import HERE, bars, save, show

import sundog


def main() -> None:
    """Let chats overtake a document that waits for KV blocks, up to so many times."""
    found = sundog.sweep(
        HERE / "head_of_line.toml",
        vary={"max_overtakes": [0, 4, 16, 64]},
        metrics=["tenant.chat.ttft_s.mean", "tenant.documents.ttft_s.mean", "tenant.chat.ttft_s.p99"],
        replications=5,
        num_gpu_blocks=1200,
        max_model_len=16384,
    )
    show(found)
    save(bars(found, "tenant.chat.ttft_s.mean", "tenant.documents.ttft_s.mean"))


if __name__ == "__main__":
    main()
