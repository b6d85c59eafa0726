"""`replay DIR` equals `replay` of the trace of DIR, byte for byte: random files of all formats."""

import csv
import gzip
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sundog.actors.core.config import ConfigError
from sundog.sim.trace.jsonl_rows import write_trace
from sundog.sim.trace.record import TraceRequest
from tests.core.traces import num_cases
from tests.sundog.test_in_and_out import SAMPLES, inside

Row = dict[str, Any]
Made = tuple[Path, list[str]]
"""A file, and the options without which it cannot be read."""


def lengths(rng: random.Random) -> tuple[int, int]:
    return rng.choice([1, 16, rng.randint(1, 2000), rng.randint(1, 6000)]), rng.choice(
        [1, rng.randint(1, 60)]
    )


def instants(rng: random.Random, count: int) -> list[float]:
    """Some at once, some apart."""
    found, now_s = [], rng.choice([0.0, 0.5])
    for _ in range(count):
        now_s += rng.choice([0.0, rng.uniform(0, 0.2), rng.uniform(0, 3)])
        found.append(round(now_s, 6))
    return found


def prompt_ids(rng: random.Random, num_tokens: int, size: int) -> list[int]:
    """Ids of a prompt that begins as those of its family do."""
    count, family = -(-num_tokens // size), rng.randrange(3)
    shared = rng.randint(0, count)
    return [family * 1000 + at if at < shared else rng.randrange(10**4, 10**6) for at in range(count)]


def ours(rng: random.Random, folder: Path) -> Made:
    """Our own format with every key that a row may have, each in some of the files."""
    size = rng.choice([0, 16, 48, 64, 512])
    has = {key: rng.random() < 0.5 for key in ("session", "priority", "tenant", "slo", "predicted", "id")}
    rows: list[TraceRequest] = []
    for number, arrival_s in enumerate(instants(rng, rng.randint(2, 14))):
        prompt, output = lengths(rng)
        name = f"q{number}-é" if has["id"] else f"r{number:07d}"
        session = f"s{rng.randrange(3)}" if has["session"] and rng.random() < 0.8 else None
        earlier = [row.request_id for row in rows if row.session is not None and row.session == session]
        after = tuple(rng.sample(earlier, 1)) if earlier and rng.random() < 0.6 else ()
        limits = [
            round(rng.uniform(0.01, 2), 3) if has["slo"] and rng.random() < 0.5 else None for _ in range(3)
        ]
        rows.append(
            TraceRequest(
                name,
                arrival_s,
                prompt,
                output,
                tuple(prompt_ids(rng, prompt, size)) if size and rng.random() < 0.8 else None,
                size,
                rng.randint(-2, 2) if has["priority"] else 0,
                rng.choice(["a", "b", None]) if has["tenant"] else None,
                session,
                limits[0],
                after,
                round(rng.uniform(0, 1), 3) if after else 0.0,
                limits[1],
                limits[2],
                rng.randint(1, 90) if has["predicted"] and rng.random() < 0.7 else None,
            )
        )
    write_trace(str(path := folder / "ours.jsonl"), rows, provenance="test", hash_block_tokens=size)
    return path, []


def table(rng: random.Random, folder: Path) -> Made:
    """A table of one's own, as CSV, JSON lines or Parquet, in any order, with units."""
    unit = rng.choice(["", ":ms", ":us"])
    scale = {"": 1.0, ":ms": 1e3, ":us": 1e6}[unit]
    names = {"arrival": "sent at", "prompt": "in", "output": "out"}
    for column in ("session", "tenant", "priority", "predicted", "slo_ttft_s", "id"):
        if rng.random() < 0.5:
            names[column] = f"the {column}"
    rows = []
    for number, arrival_s in enumerate(instants(rng, rng.randint(2, 12))):
        prompt, output = lengths(rng)
        every: Row = {
            "arrival": round(arrival_s * scale, 3),
            "prompt": prompt,
            "output": output,
            "session": f"s{rng.randrange(3)}",
            "tenant": rng.choice(["a", "b"]),
            "priority": rng.randint(-2, 2),
            "predicted": rng.randint(1, 90),
            "slo_ttft_s": round(rng.uniform(0.01, 2), 3),
            "id": f"x{number}",
        }
        rows.append({names[key]: value for key, value in every.items() if key in names})
    rng.shuffle(rows)
    given = ",".join(f"{key}={name}{unit if key == 'arrival' else ''}" for key, name in names.items())
    match rng.choice(["csv", "jsonl", "parquet"]):
        case "csv":
            with (path := folder / "own.csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
        case "jsonl":
            (path := folder / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        case _:
            pq.write_table(pa.Table.from_pylist(rows), path := folder / "own.parquet")
    return path, ["--columns", given]


def mooncake(rng: random.Random, folder: Path) -> Made:
    """Whole milliseconds, perhaps dates, and ids of 512 tokens."""
    rows, begin_ms = [], rng.choice([0, 1787267980082])
    for arrival_s in instants(rng, rng.randint(2, 12)):
        prompt, output = lengths(rng)
        row: Row = {
            "timestamp": begin_ms + int(arrival_s * 1000),
            "input_length": prompt,
            "output_length": output,
        }
        rows.append(row | {"hash_ids": prompt_ids(rng, prompt, 512)})
    return lines(folder / "mooncake.jsonl", rows), []


def bailian(rng: random.Random, folder: Path) -> Made:
    """Chats with parents, and ids of 16 tokens."""
    rows: list[Row] = []
    for chat, arrival_s in enumerate(instants(rng, rng.randint(2, 10))):
        prompt, output = lengths(rng)
        parent = rng.choice([-1, *range(chat)])
        turn = 1 if parent == -1 else rows[parent]["turn"] + 1
        rows.append(
            {
                "chat_id": chat,
                "parent_chat_id": parent,
                "timestamp": arrival_s,
                "input_length": prompt,
                "output_length": output,
                "type": "text",
                "turn": turn,
                "hash_ids": prompt_ids(rng, prompt, 16),
            }
        )
    return lines(folder / "bailian.jsonl", rows), []


def agents(rng: random.Random, folder: Path) -> Made:
    """Requests that wait for others of their session, and for tools."""
    rows: list[Row] = []
    for number, arrival_s in enumerate(instants(rng, rng.randint(2, 10))):
        prompt, output = lengths(rng)
        row: Row = {"request_id": f"r{number}", "session_id": f"s{rng.randrange(3)}"}
        earlier = [each["request_id"] for each in rows if each["session_id"] == row["session_id"]]
        if earlier and rng.random() < 0.6:
            row |= {
                "wait_for": rng.sample(earlier, 1),
                "delay": rng.randrange(900),
                "tool_wait_ms": rng.randrange(900),
            }
        else:
            row["timestamp"] = int(arrival_s * 1000)
        row |= {"input_length": prompt, "output_length": output, "hash_ids": prompt_ids(rng, prompt, 512)}
        rows.append(row)
    return lines(folder / "agents.jsonl", rows), []


def plain(rng: random.Random, folder: Path) -> Made:
    """CSV as Vidur, ServeGen, Azure, BurstGPT and splitwise-sim have it."""
    head, row = rng.choice(
        [
            ("arrived_at,num_prefill_tokens,num_decode_tokens", "{t},{p},{o}"),
            ("arrived_at,input_tokens,output_tokens", "{t},{p},{o}"),
            ("TIMESTAMP,ContextTokens,GeneratedTokens", "2024-05-10 00:00:{t:09.6f}+00:00,{p},{o}"),
            ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
             "{t},ChatGPT,{p},{o},{s},API log"),
            ("Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
             "{t},s{n},1.5,ChatGPT,{p},{o},{s},Conversation log"),
            ("request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size",
             "{i},2,0,{t},1,{p},{o}"),
        ]
    )  # fmt: skip
    text = head + "\n"
    for number, arrival_s in enumerate(instants(rng, rng.randint(2, 12))):
        prompt, output = lengths(rng)
        text += row.format(t=arrival_s, p=prompt, o=output, s=prompt + output, n=number % 3, i=number) + "\n"
    (path := folder / "plain.csv").write_text(text)
    return path, []


def sample(rng: random.Random, folder: Path) -> Made:
    """A sample of another tool's own."""
    name = rng.choice(
        ["weka.json", "otlp.json", "guidellm.json", "aiperf.jsonl", "llmservingsim.jsonl", "vb_failed.json",
         "llmservingsim-results.csv", "sg.json", "mooncake-without-times.jsonl", "e_agent.jsonl"]
    )  # fmt: skip
    shutil.copy(SAMPLES / name, path := folder / name)
    return path, []


def lines(path: Path, rows: list[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


FORMATS: list[Callable[[random.Random, Path], Made]] = [
    ours, ours, table, mooncake, bailian, agents, plain, sample
]  # fmt: skip


def chosen(rng: random.Random, share: float, *options: list[str]) -> list[str]:
    """Some of the options."""
    return [word for option in options if rng.random() < share for word in option]


def part(rng: random.Random) -> list[str]:
    """Options that say which requests a run is made of: its folder holds what they left."""
    return chosen(
        rng,
        0.25,
        ["--limit", str(rng.randint(1, 9))],
        ["--from", rng.choice(["0", "0.3"])],
        ["--until", rng.choice(["2.5", "40", "2000"])],
        ["--sample-sessions", rng.choice(["0.8", "1"])],
        ["--max-idle-s", rng.choice(["0.2", "1"])],
        ["--request-rate", rng.choice(["inf", "5", "0.5"])],
    )


def way(rng: random.Random) -> list[str]:
    """Options that say how requests are served."""
    fleet = rng.choice(
        [
            [],
            ["--replicas", "2", "--router", rng.choice(["prefix-aware", "session-affinity", "power-of-two"])],
            ["--replicas", "3", "--router-replicas", "2", "--router", "least-requests"],
            ["-dp", "2"],
            ["--replicas", "3", "--scaler", "keda:target=2", "--scale-every-s", "1", "--scale-start-s", "2"],
            ["--pool", "prefill=h100:x1", "--pool", "decode=h100:x2"],
        ]
    )
    return fleet + chosen(
        rng,
        0.25,
        [
            "--policy",
            rng.choice(["priority", "shortest-remaining", "earliest-deadline", "longest-prefix", "vtc"]),
        ],
        ["--max-num-seqs", rng.choice(["1", "4"])],
        ["--max-num-batched-tokens", "512"],
        ["--block-size", rng.choice(["32", "64"])],
        ["--client-timeout", "1.5"],
        ["--max-waiting", "4"],
        ["--max-concurrency", "3"],
        ["--slo", "ttft=0.3,p95(e2e)<2"],
        ["--seed", str(rng.randint(1, 99))],
        ["--predictor", rng.choice(["oracle", "class-mean"])],
        ["--no-async-scheduling"],
    )


def judged(folder: Path) -> list[Row]:
    """The table of requests, without what only a machine's clock says."""
    found: list[Row] = pq.read_table(folder / "requests.parquet").to_pylist()
    return found


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("seed", range(num_cases(12)))
def test_a_run_of_any_file_and_options_is_replayed_to_the_byte(seed: int, tmp_path: Path) -> None:
    """Its figures, its rows, and those of the run of the run, without the options that read the file."""
    rng = random.Random(seed)
    path, needed = rng.choice(FORMATS)(rng, tmp_path)
    if path.suffix != ".parquet" and rng.random() < 0.3:
        packed = path.with_name(path.name + ".gz")
        packed.write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
        path = packed
    cut, served = needed + part(rng), way(rng)
    told = f"seed {seed}: {path.name} {cut} {served}"
    try:
        first, _ = inside("replay", path, *cut, *served, "--json", "--out", tmp_path / "a")
    except BaseExceptionGroup as errors:  # from the simulated clients
        refused = errors.subgroup(ConfigError)
        assert refused is not None and not (tmp_path / "a").exists(), told
        pytest.skip(f"{told}: {refused}")
    except ConfigError as error:
        assert not (tmp_path / "a").exists(), told
        pytest.skip(f"{told}: {error}")
    second, said = inside("replay", tmp_path / "a", *served, "--json", "--out", tmp_path / "b")
    assert second == first, told
    assert judged(tmp_path / "a") == judged(tmp_path / "b"), told
    assert "is not there" not in said
    third, _ = inside("replay", tmp_path / "b", *served, "--json")
    assert third == first, told
