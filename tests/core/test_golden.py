"""Decisions equal vLLM's: every golden trace reproduces its golden log, byte for byte."""

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from sundog.actors.block_hash import ALGORITHMS, block_hasher, none_hash
from sundog.actors.core.config import ConfigError
from sundog.actors.core.params.sampling import Adapter
from sundog.sim.schedule.decision_log import DecisionLog, dump
from sundog.sim.schedule.step_trace import parse_trace

GOLDEN = Path(__file__).parent.parent / "golden"
NAMES = sorted(path.name.split(".")[0] for path in GOLDEN.glob("*.trace.json.gz"))
RANDOM = sorted(path.name.split(".")[0] for path in (GOLDEN / "random").glob("*.trace.json.gz"))
STAGES = sorted(path.name.split(".")[0] for path in (GOLDEN / "stages").glob("*.trace.json.gz"))
DRAFTS = sorted(path.name.split(".")[0] for path in (GOLDEN / "drafts").glob("*.trace.json.gz"))
DRAFTS_033 = sorted(path.name.split(".")[0] for path in (GOLDEN / "drafts33").glob("*.trace.json.gz"))
INTERVALS = sorted(path.name.split(".")[0] for path in (GOLDEN / "interval").glob("*.trace.json.gz"))
POLICIES = sorted(path.name.split(".")[0] for path in (GOLDEN / "policies").glob("*.trace.json.gz"))
VECTORS = json.loads((GOLDEN / "hash_vectors.json").read_text())
BLOCK_0, BLOCK_1 = tuple(range(16)), tuple(range(16, 32))


def read(name: str) -> tuple[dict[str, Any], list[str]]:
    """A golden trace, and its log's lines."""
    trace = json.loads(gzip.decompress((GOLDEN / f"{name}.trace.json.gz").read_bytes()))
    log = gzip.decompress((GOLDEN / f"{name}.log.jsonl.gz").read_bytes()).decode()
    return trace, log.splitlines()


def assert_equal_logs(name: str, engine_version: str, lockstep: bool) -> None:
    """What the Scheduler decides is the golden log, line for line."""
    trace, golden = read(name)
    log = DecisionLog(parse_trace(trace, engine_version), lockstep=lockstep).run()
    for number, (ours, theirs) in enumerate(zip(log, golden, strict=False)):
        # Lines are compared as text, so that the order of fields counts: theirs may have spaces.
        assert dump(ours) == dump(json.loads(theirs)), f"line {number + 1}"
    assert len(log) == len(golden)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("engine_version", ["0.32", "0.33"])
@pytest.mark.parametrize("lockstep", [True, False], ids=["lockstep", "plain"])
@pytest.mark.parametrize("name", NAMES)
def test_the_log_is_the_golden_log(name: str, lockstep: bool, engine_version: str) -> None:
    """Each of a kind that is worth a name, under both versions."""
    assert_equal_logs(name, engine_version, lockstep)


@pytest.mark.long(keep=20, reason="more seeds of the law whose first cases `make test` runs")
@pytest.mark.parametrize("name", RANDOM)
def test_the_log_of_a_random_trace_is_the_golden_log(name: str) -> None:
    """Every option mixed with every other; under 0.33 alone, whose decisions they are."""
    assert_equal_logs(f"random/{name}", "0.33", lockstep=int(name[-2:]) % 4 != 0)


@pytest.mark.parametrize("name", STAGES)
def test_the_log_with_stages_of_layers_is_the_golden_log(name: str) -> None:
    """Two to four stages, planned ahead or not; under 0.32, whose decisions they are."""
    assert_equal_logs(f"stages/{name}", "0.32", lockstep=True)


@pytest.mark.parametrize("name", DRAFTS)
def test_the_log_with_drafts_is_the_golden_log(name: str) -> None:
    """Up to four drafts a step, of which some are right; under 0.32, whose decisions they are."""
    assert_equal_logs(f"drafts/{name}", "0.32", lockstep=True)


@pytest.mark.parametrize("name", DRAFTS_033)
def test_the_log_with_drafts_under_033_is_the_golden_log(name: str) -> None:
    """Blocks that accepted drafts fill join the prefix cache with the result of their step."""
    assert_equal_logs(f"drafts33/{name}", "0.33", lockstep=True)


@pytest.mark.parametrize("lockstep", [True, False], ids=["lockstep", "plain"])
@pytest.mark.parametrize("name", INTERVALS)
def test_the_log_with_a_prefill_interval_is_the_golden_log(name: str, lockstep: bool) -> None:
    """Prompts in one of two to nine steps while requests decode, in one stage or two; under 0.33."""
    assert_equal_logs(f"interval/{name}", "0.33", lockstep=lockstep)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("name", POLICIES)
def test_the_log_under_an_exported_policy_is_the_golden_log(name: str) -> None:
    """vLLM 0.33 decided with the class that `sundog export` writes; four of the policies pause requests."""
    assert_equal_logs(f"policies/{name}", "0.33", lockstep=True)


def test_the_goldens_of_033_are_not_those_of_032() -> None:
    """Some of its drafts, and some of its intervals, are decided otherwise there."""
    for folder, names in (("drafts33", DRAFTS_033), ("interval", INTERVALS)):
        num_equal = 0
        for trace, golden in (read(f"{folder}/{name}") for name in names):
            former = [dump(line) for line in DecisionLog(parse_trace(trace, "0.32")).run()]
            num_equal += former == [dump(json.loads(line)) for line in golden]
        assert num_equal < len(names), folder


def test_there_are_goldens() -> None:
    """The parametrisations above found their files."""
    assert (len(NAMES), len(RANDOM), len(STAGES), len(DRAFTS)) == (13, 60, 11, 12)
    assert (len(DRAFTS_033), len(INTERVALS), len(POLICIES)) == (12, 12, 7)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["algo"])
def test_block_hashes_are_vllms(vector: dict[str, str]) -> None:
    """Blocks of tokens 0-15 and 16-31, chained; salted; the root of all chains."""
    hash_block = block_hasher(vector["algo"], vector["none_seed"])
    block_0 = hash_block(None, BLOCK_0, None, None)
    assert isinstance(block_0, bytes)
    assert none_hash(vector["algo"], vector["none_seed"]).hex() == vector["none_hash"]
    assert block_0.hex() == vector["block0"]
    assert hash_block(block_0, BLOCK_1, None, None).hex() == vector["block1"]
    salted = hash_block(None, BLOCK_0, "tenantB", None)
    assert salted.hex() == vector["block0_salt_tenantB"]
    assert (block_0 + (0).to_bytes(4, "big")).hex() == vector["key_group0"]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["algo"])
def test_extra_keys_are_encoded_as_vllm_does(vector: dict[str, str]) -> None:
    """An adapter's name and path are in the key of every block; a salt comes behind them, in the first."""
    digest, encode = ALGORITHMS[vector["algo"]]
    root = none_hash(vector["algo"], vector["none_seed"])
    hash_block, adapter = block_hasher(vector["algo"], vector["none_seed"]), Adapter("adapterA", "/p")
    block_0 = hash_block(None, BLOCK_0, None, adapter)
    assert isinstance(block_0, bytes) and block_0.hex() == vector["block0_lora"]
    lora, salt = ("lora", "adapterA", "/p"), ("cache_salt", "tenantB")
    assert hash_block(block_0, BLOCK_1, "tenantB", adapter) == digest(encode((block_0, BLOCK_1, (lora,))))
    assert hash_block(None, BLOCK_0, "tenantB", adapter) == digest(encode((root, BLOCK_0, (lora, salt))))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_salt_separates_tenants_from_the_first_block_on(algorithm: str) -> None:
    """A salt is in the first block alone, and through the chain in all that follow."""
    hash_block = block_hasher(algorithm)
    plain, salted = (hash_block(None, BLOCK_0, salt, None) for salt in (None, "tenant"))
    assert plain != salted
    assert hash_block(plain, BLOCK_1, "tenant", None) == hash_block(plain, BLOCK_1, None, None)
    assert hash_block(plain, BLOCK_1, "tenant", None) != hash_block(salted, BLOCK_1, "tenant", None)


def test_the_hash_of_a_block_does_not_depend_on_how_its_tokens_came_to_be() -> None:
    """Equal values give equal keys, for a pickle too: no object is encoded by its identity."""
    parent = hashlib.sha256(b"parent").digest()
    salt = "".join(["ten", "ant"])
    for algorithm in ALGORITHMS:
        hash_block = block_hasher(algorithm)
        assert hash_block(parent, (1000, 1000, 7), None, None) == hash_block(
            bytes(bytearray(parent)), tuple(int(text) for text in ("1000", "1000", "7")), None, None
        )
        assert hash_block(None, BLOCK_0, salt, None) == hash_block(None, BLOCK_0, "tenant", None)


def test_an_unknown_algorithm_is_an_error_that_names_the_field() -> None:
    """And says which are known."""
    with pytest.raises(ConfigError, match=r"prefix_caching_hash_algo is 'md5'.*sha256"):
        block_hasher("md5")
