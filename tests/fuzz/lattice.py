"""Random configurations over every option that changes decisions, each with a trace that causes
contention.
"""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sundog.sim.trace.record import TraceRequest

DECIDERS = Path(__file__).with_name("deciders.py")
DOCS = Path(__file__).parents[2] / "docs"
BLOCK = 16
CONTEXT = 480
WITNESS = "last-"
"""The ids of the requests that come last begin so."""
WITNESS_TOKENS = 7
"""The tokens of a witness, a small request after all others: five of its prompt, two of its answer."""
LAST_S = 520.0
"""The witnesses come this much after the others: longer than blocks are kept for a lost request (480 s)."""


@dataclass(frozen=True)
class Configuration:
    """A replay: its `rows`, its `options` by the names that `sundog.replay` has, and its file of `faults`."""

    seed: int
    rows: tuple[TraceRequest, ...]
    options: Mapping[str, Any]
    faults: str = ""

    def without(self, name: str) -> "Configuration":
        """Return the same without one option, or with half of the rows, or without the last fault."""
        if name == "rows":
            return replace(self, rows=self.rows[: len(self.rows) // 2])
        if name == "faults":
            parts = self.faults.split("\n\n")
            return replace(self, faults="\n\n".join(parts[:-1]))
        return replace(self, options={key: value for key, value in self.options.items() if key != name})

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the files of the configuration; returns its options with their paths."""
        from sundog.sim.trace.jsonl_rows import write_trace

        folder.mkdir(parents=True, exist_ok=True)
        write_trace(
            str(folder / "trace.jsonl"),
            self.rows,
            provenance="python -m tests.fuzz",
            seed=self.seed,
            hash_block_tokens=BLOCK,
        )
        options = dict(self.options)
        if self.faults:
            (folder / "faults.toml").write_text(self.faults)
            options["faults"] = str(folder / "faults.toml")
        return options

    def command(self, folder: Path) -> str:
        """Write its files, and return the command line that repeats it."""
        words = ["sundog", "replay", str(folder / "trace.jsonl"), "--no-ranges"]
        for name, value in self.write(folder).items():
            option = name.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{option}" if value else f"--no-{option}")
            elif isinstance(value, tuple):
                words += [f"--{option} {each}" for each in value]
            else:
                words.append(f"--{option} '{value}'" if "{" in str(value) else f"--{option} {value}")
        return " ".join(words)


def configuration(seed: int) -> Configuration:
    """Return the configuration of a seed; some are refused when they are built."""
    rng = random.Random(f"lattice {seed}")
    options: dict[str, Any] = {"seed": rng.randrange(100), "max_model_len": CONTEXT}
    shape = rng.choice(["one", "replicas", "replicas", "pools", "pools", "moves", "moves", "ranks", "stages"])
    _shape(rng, shape, options)
    _limits(rng, options)
    _policy(rng, options)
    may_scale = shape in ("replicas", "moves") and "data_parallel_size" not in options
    if (may_scale and rng.random() < 0.5) or (shape == "pools" and rng.random() < 0.3):
        _scaler(rng, shape, options)
    if shape not in ("pools", "stages") and rng.random() < 0.4:
        options["kv_offloading_size"] = rng.choice([0.02, 0.1, 1.0])
        options["kv_offloading_gb_per_s"] = rng.choice([0.2, 2.0, 20.0])
        options.pop("enable_prefix_caching", None)
    if rng.random() < 0.15 and shape != "stages":
        drafts = {"method": "ngram", "num_speculative_tokens": rng.randint(1, 4), "acceptance": 0.6}
        options |= {"speculative_config": json.dumps(drafts), "async_scheduling": False}
    if shape == "ranks":
        options.pop("prefill_schedule_interval", None)
    if rng.random() < 0.3:
        by_prompt = f"{DOCS}/by_prompt.py:ByPrompt:insight=0.5"
        options["predictor"] = rng.choice(["oracle", "class-mean", "noisy", by_prompt])
    if rng.random() < 0.2:
        options["client_timeout"] = rng.choice([0.3, 1.0, 4.0])
    if rng.random() < 0.15:
        options["max_concurrency"] = rng.randint(1, 12)
    if rng.random() < 0.15:
        options["max_waiting"] = rng.randint(2, 20)
    rows = _rows(rng)
    if not any(row.after for row in rows) and rng.random() < 0.25:
        options["request_rate"] = rng.choice(["inf", "2", "50"])
    faults = ""
    if shape not in ("ranks", "stages") and rng.random() < 0.5:
        faults = _faults(rng, shape, options, rows[-1].arrival_s + 1.0)
    return Configuration(seed, (*rows, *_witnesses(rows)), options, faults)


def _shape(rng: random.Random, shape: str, options: dict[str, Any]) -> None:
    num_blocks = rng.choice([32, 40, 64, 120])
    if shape == "pools":
        given = [f"prefill={rng.choice(['h100', 'a100-80gb'])}:x{rng.randint(1, 2)}"]
        given.append(f"decode={rng.choice(['h100', 'b200:tp2'])}x{rng.randint(1, 3)}")
        given[-1] = given[-1].replace("h100x", "h100:x")
        options["pool"] = tuple(f"{each}:num_gpu_blocks={rng.choice([32, 48, 120])}" for each in given)
    else:
        options["num_gpu_blocks"] = num_blocks
        if shape in ("replicas", "moves"):
            options["replicas"] = rng.randint(2, 4)
    if shape == "ranks":
        options |= {"model": "qwen3-30b-a3b", "data_parallel_size": 2, "enable_expert_parallel": True}
    if shape == "stages":
        options["pipeline_parallel_size"] = rng.randint(2, 3)
        options["replicas"] = rng.randint(1, 2)
    if shape in ("pools", "moves"):
        options["kv_transfer_gb_per_s"] = rng.choice([0.02, 0.2, 50.0])
        options["kv_transfer_latency_s"] = rng.choice([0.0, 0.001, 0.2])
    routers = [f"{DECIDERS}:{name}" for name in ("Holds", "Global", "TurnsAway")]
    routers += [f"{DECIDERS}:Global:most=1", "round-robin", "least-requests", "least-tokens", "power-of-two"]
    routers += ["prefix-aware", "weighted:prefix=1,load=0.5", "session-affinity"]
    routers += [f"{DOCS}/routers/sticky_prefix.py:StickyPrefix", f"{DOCS}/routers/shed_load.py:ShedLoad"]
    routers += [f"{DOCS}/routers/late_binding.py:LateBinding:most={rng.choice([1, 4])}"]
    routers += [f"{DOCS}/routers/longest_apart.py:LongestApart:long_tokens=100"]
    if shape in ("one", "replicas", "ranks"):
        routers += ["data-parallel", "data-parallel:rule=counts"]
    if shape == "moves" or (shape == "pools" and rng.random() < 0.3):
        routers = [f"{DECIDERS}:Restless", f"{DECIDERS}:Restless:share=0.05,most=3"]
        routers.append(f"{DOCS}/routers/llumnix.py:Llumnix")
    options["router"] = rng.choice(routers)
    if not _moves(options["router"]) and rng.random() < 0.15:
        options["router_replicas"] = rng.randint(2, 3)
    if rng.random() < 0.2:
        options["hop_cost"] = rng.choice(
            ["submit=0.004", "submit=0.001,token=1e-5,output=0.003", "output=0.05"]
        )
    if rng.random() < 0.3:
        options["front_cost"] = rng.choice(
            [
                "request=0.02",
                "request=0.3,processes=3,stages=4",
                "response=0.05,prompt_token=1e-4",
                "request=0.02,output_token=1e-3,stages=3",
            ]
        )


def _moves(router: str) -> bool:
    return "Restless" in router or "Llumnix" in router


def _limits(rng: random.Random, options: dict[str, Any]) -> None:
    options["max_num_seqs"] = rng.choice([1, 3, 8, 24])
    options["max_num_batched_tokens"] = rng.choice([32, 64, 512, 2048])
    options["async_scheduling"] = rng.random() < 0.5
    for name, share, values in (
        ("enable_prefix_caching", 0.2, [False]),
        ("enable_chunked_prefill", 0.1, [False]),
        ("long_prefill_token_threshold", 0.2, [16, 64]),
        ("watermark", 0.15, [0.02, 0.1]),
        ("max_overtakes", 0.3, [1, 2, 8]),
        ("preempt_for_priority", 0.35, [True]),
        ("victim", 0.2, ["least-recompute"]),
        ("refuse_never_fit", 0.1, [True]),
        ("engine_version", 0.2, ["0.32.0", "0.11.0"]),
        ("prefill_schedule_interval", 0.2, [2, 3, 9]),
        ("block_size", 0.2, [4, 8]),
        ("step_scale", 0.1, [0.05, 8.0]),
        ("host_overhead", 0.1, [False]),
        ("enforce_eager", 0.1, [True]),
    ):
        if rng.random() < share:
            options[name] = rng.choice(values)
    if options.get("enable_chunked_prefill") is False:
        options["max_num_batched_tokens"] = 2048
    if (finer := BLOCK // options.get("block_size", BLOCK)) > 1:
        _more_blocks(options, finer)


def _more_blocks(options: dict[str, Any], times: int) -> None:
    """Keep the tokens of the KV cache with smaller blocks."""
    if "num_gpu_blocks" in options:
        options["num_gpu_blocks"] *= times
    pools = [each.rpartition("=") for each in options.get("pool", ())]
    if pools:
        options["pool"] = tuple(f"{pool}={int(blocks) * times}" for pool, _, blocks in pools)


def _policy(rng: random.Random, options: dict[str, Any]) -> None:
    urgent = ["priority", "earliest-deadline", "mlfq", "shortest-remaining"]
    urgent += [f"{DECIDERS}:Whims", f"{DECIDERS}:Choosy"]
    others = ["fcfs", "fcfs", "shortest-prompt", "longest-prefix", "vtc", "prefill-first", "decode-first"]
    others += [f"{DECIDERS}:{name}" for name in ("Nibbling", "Pausing")]
    documented = ["policies/least_recompute.py:LeastRecompute", "policies/deficit.py:Deficit:quantum=40"]
    documented += ["policies/fast_serve.py:FastServe:batch=2,quantum=4,prompt_tokens_per_level=32"]
    documented += ["policies/andes.py:Andes:lead_s=0.2", "policies/sola.py:Sola:least_tokens=8"]
    documented += ["policies/learned_rank.py:LearnedRank:patience_s=1", "lottery.py:Lottery:favoured=a"]
    documented += ["interactive_first.py:InteractiveFirst:patience_steps=9", "least_slack.py:LeastSlack"]
    documented += ["learned_lengths.py:LearnedLengths", "response_ratio.py:ResponseRatio"]
    documented += ["rate_limit.py:RateLimit:per_minute=60", "small_chunks.py:SmallChunks:chunk_tokens=8"]
    others += [f"{DOCS}/{each}" for each in rng.sample(documented, 5)]
    options["policy"] = rng.choice(urgent if "preempt_for_priority" in options else urgent + others)
    if options["policy"] == "shortest-remaining":
        options["predictor"] = rng.choice(["oracle", "noisy"])


def _scaler(rng: random.Random, shape: str, options: dict[str, Any]) -> None:
    own = f"{DECIDERS}:Tide:turn_s={rng.choice([0.3, 1.0, 2.5])}"
    known = ["keda:target=3,down_s=1", "hpa:down_s=1", "attainment:ttft_s=0.1,down_s=1", "forecast:down_s=1"]
    scalers = [own, own, *known, f"{DOCS}/scalers/grow_early.py:GrowEarly"]
    options["scaler"] = rng.choice(scalers)
    options["scale_least"] = 1 if shape == "pools" else rng.randint(1, 2)
    if shape == "pools" and rng.random() < 0.5:
        options["scaler"] = f"prefill={rng.choice(scalers)},decode={rng.choice(scalers)}"
    options["scale_every_s"] = rng.choice([0.5, 1.0, 3.0])
    options["scale_start_s"] = rng.choice([0.0, 0.1, 2.0])


def _rows(rng: random.Random) -> list[TraceRequest]:
    """Requests faster than they can be served, some of which begin alike, some after one another."""
    rows: list[TraceRequest] = []
    time_s, per_s = 0.0, rng.choice([5.0, 30.0, 200.0])
    has_sessions, has_contents, has_terms = (rng.random() < 0.5 for _ in range(3))
    longest = rng.choice([40, 160, 300])
    for number in range(rng.choice([4, 10, 24, 40])):
        time_s += rng.expovariate(per_s)
        num_prompt, num_output = (
            rng.randint(1, longest),
            rng.choice([1, rng.randint(1, 60), rng.randint(1, 120)]),
        )
        family = rng.randrange(4)
        row = TraceRequest(f"r{number}", round(time_s, 6), num_prompt, num_output)
        if has_contents and family:
            own = num_prompt // BLOCK - rng.randint(0, 4)
            ids = tuple(
                family * 1000 + index if index < own else 10**6 * (number + 1) + index
                for index in range(-(-num_prompt // BLOCK))
            )
            row = row._replace(hash_ids=ids, hash_block_tokens=BLOCK)
        if has_terms:
            row = row._replace(
                tenant=rng.choice(["a", "b", None]),
                priority=rng.randint(-2, 2),
                slo_ttft_s=rng.choice([None, 0.5, 5.0]),
                slo_tpot_s=rng.choice([None, 0.02, 0.5]),
                slo_e2e_s=rng.choice([None, 1.0, 20.0]),
                predicted_tokens=rng.choice([None, num_output, 10]),
            )
        if has_sessions and rng.random() < 0.6:
            session = f"s{rng.randrange(4)}"
            before = [each for each in rows if each.session == session]
            row = row._replace(session=session)
            if before and rng.random() < 0.7:
                after = tuple(
                    dict.fromkeys(each.request_id for each in rng.choices(before, k=rng.randint(1, 2)))
                )
                row = row._replace(after=after, pause_s=rng.choice([0.0, 0.2, 1.5]))
        rows.append(row)
    return rows


def _witnesses(rows: list[TraceRequest]) -> list[TraceRequest]:
    """Small requests one after another, long after the others."""
    first_s = rows[-1].arrival_s + LAST_S
    return [TraceRequest(f"{WITNESS}{number}", first_s + 5.0 * number, 5, 2) for number in range(6)]


def _faults(rng: random.Random, shape: str, options: Mapping[str, Any], span_s: float) -> str:
    num_replicas = options.get("replicas", 1)
    if shape == "pools":
        num_replicas = sum(int(each.split(":num_")[0].rsplit("x", 1)[1]) for each in options["pool"])
    kinds = ["dead-engine", "dead-engine", "straggler", "cancellations", "spike", "retries"]
    if shape in ("pools", "moves"):
        kinds += ["slow-link", "lost-transfer"]
    tables = []
    for kind in rng.choices(kinds, k=rng.randint(1, 5)):
        fields = {"kind": json.dumps(kind), **_fields(rng, kind, num_replicas, span_s)}
        tables.append("[[fault]]\n" + "\n".join(f"{name} = {value}" for name, value in fields.items()))
    if rng.random() < 0.1:  # the last table is left out first to make a configuration smaller
        mtbf_s, down_s = round(rng.uniform(0.2, 2.0) * span_s, 3), rng.choice([0.01, 1.0])
        tables.append(f"[random]\nmtbf_s = {mtbf_s}\ndown_s = {down_s}\nuntil_s = {span_s}")
    return "\n\n".join(tables)


def _fields(rng: random.Random, kind: str, num_replicas: int, span_s: float) -> dict[str, Any]:
    at_s, for_s = round(rng.uniform(0, span_s), 3), round(rng.uniform(0, span_s), 3)
    replica, rate = rng.randrange(num_replicas), rng.choice([0.2, 0.6])
    down_s = rng.choice([0.01, 1.0, for_s])
    factor, part = rng.choice([0.5, 3.0, 10.0]), rng.choice([0.0, 0.1])
    notice_s = round(rng.choice([0.0, rng.random()]) * down_s, 4)
    fields: dict[str, dict[str, Any]] = {
        "dead-engine": {"at_s": at_s, "replica": replica, "down_s": down_s, "notice_s": notice_s},
        "straggler": {"at_s": at_s, "for_s": for_s, "replica": replica, "factor": factor},
        "slow-link": {"at_s": at_s, "for_s": for_s, "replica": replica, "part": part},
        "lost-transfer": {"at_s": at_s, "for_s": for_s, "rate": rate},
        "cancellations": {"at_s": at_s, "rate": rate},
        "spike": {"at_s": at_s, "for_s": for_s, "factor": 2},
        "retries": {"attempts": rng.randint(1, 4), "wait_s": rng.choice([0.0, 0.3, 2.0])},
    }
    return fields[kind]


NOT_VARIED = {
    "tensor_parallel_size": "only how long steps take; pools have engines of one and two GPUs",
    "dtype": "only how long steps take",
    "quantization": "only how long steps take",
    "kv_cache_dtype": "only how long steps take, and how many blocks fit, which are given",
    "gpu_memory_utilization": "how many blocks fit, which are given",
    "gpu": "only how long steps take; pools have several",
    "cost": "only how long steps take",
    "kv_offloading_backend": "has one value",
    "prefix_caching_hash_algo": "names blocks; a replay's have the names of its trace",
    "override_generation_config": "samples tokens, which a replay takes from its trace",
    "debug": "every configuration has it",
    "slo": "judges a run that is over",
    "gpu_price_per_h": "judges a run that is over",
    **dict.fromkeys(
        ("limit", "tokenizer", "columns", "from_s", "until_s", "sample_sessions", "max_idle_s"),
        "says which rows of a trace there are",
    ),
}
"""The options of a replay that no configuration has, with the reason."""
