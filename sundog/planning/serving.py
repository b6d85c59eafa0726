"""Commands that simulate and serve a fleet, and the options of its servers."""

import json
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from sundog.options.row import spelled
from sundog.planning.pools import ROLES, PoolsCandidate
from sundog.planning.search import Candidate

if TYPE_CHECKING:
    from sundog.options.simulation import ReadingOptions
    from sundog.sim.figures.sweep.cells import Settings
    from sundog.sweeps.cell import Plan

SERVED = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "block_size",
    "num_gpu_blocks",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "gpu_memory_utilization",
    "speculative_config",
    "enable_expert_parallel",
    "enable_prefix_caching",
    "pipeline_parallel_size",
    "data_parallel_size",
)
"""Options of an engine that vLLM has by the same names, except for those in `RENAMED`."""
RENAMED = {"--num-gpu-blocks": "--num-gpu-blocks-override"}
OWN_POLICIES = {"fcfs": (), "priority": ("--scheduling-policy", "priority")}


TRANSFER = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"})
"""vLLM's setting for servers of two pools that transfer keys and values."""


class ServerGroup(NamedTuple):
    """Equal servers of a fleet; `role` is None for whole requests."""

    role: str | None
    num_servers: int
    machine: Candidate


def groups_of(winner: Candidate) -> tuple[ServerGroup, ...]:
    """Return the groups of equal servers: one, or one for each pool."""
    assert winner.holding is not None
    if isinstance(winner, PoolsCandidate):
        numbers = winner.engines(winner.holding, winner.spare)
        return tuple(map(ServerGroup, ROLES, numbers, winner.parts))
    return (ServerGroup(None, winner.bought, winner),)


def commands(winner: Candidate, plan: "Plan", reading: "ReadingOptions") -> Iterator[str]:
    """Yield the commands that simulate the fleet and serve it, with every option that was set."""
    assert winner.holding is not None
    settings = dict(winner.settings_of(winner.holding, winner.spare))
    pools = [word for pool in str(settings.pop("pool", "")).split("+") if pool for word in ("--pool", pool)]
    verb = "sweep" if plan.where.endswith(".toml") else "replay"
    words = ["sundog", verb, plan.where]
    own = ("gpu", "tensor_parallel_size", *settings)
    for record in (plan.target, plan.engine, plan.load, reading, plan.terms):
        words += spelled(record, own)
    yield shlex.join([*words, *_flags(settings), *(pools or ("--replicas", str(winner.bought)))])
    from sundog.sim.hardware.repositories import repository_of

    repository = repository_of(plan.target.model) or plan.target.model
    for group in groups_of(winner):
        words = ["vllm", "serve", repository, *vllm_options(winner, plan, group)]
        times = f"{group.num_servers} times" if group.num_servers > 1 else "once"
        place = "" if group.role is None else f"for {group.role} on {group.machine.settings['gpu']}, "
        is_alone = group.role is None and group.num_servers == 1
        router = router_of(winner, plan)
        yield shlex.join(words) + ("" if is_alone else f"  # {times}, {place}behind a router ({router})")
    if (policy := str(settings.get("policy", plan.engine.policy))) not in OWN_POLICIES:
        yield f"# vLLM has no policy {policy}: it serves first come, first served"


def _flags(settings: "Settings") -> list[str]:
    words = []
    for name, value in settings.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        else:
            words += [flag, str(value)]
    return words


def vllm_options(winner: Candidate, plan: "Plan", group: ServerGroup) -> list[str]:
    """Return the options of `vllm serve` for a replica."""
    settings = {name: value for name, value in winner.settings.items() if name in SERVED}
    rest = [field for field in type(plan.engine).__dataclass_fields__ if field not in SERVED]
    words = list(spelled(plan.engine, (*rest, *settings)))
    words += _flags({"tensor_parallel_size": group.machine.settings["tensor_parallel_size"], **settings})
    words += OWN_POLICIES.get(str(winner.settings.get("policy", plan.engine.policy)), ())
    words += () if group.role is None else ("--kv-transfer-config", TRANSFER)
    return [RENAMED.get(word, word) for word in words]


def router_of(winner: Candidate, plan: "Plan") -> str:
    """Return the router with which the fleet was simulated."""
    return str(winner.settings.get("router", plan.engine.chosen_router))


def engine_version_of(winner: Candidate, plan: "Plan") -> str:
    """Return the version of vLLM with which the fleet was simulated."""
    return str(winner.settings.get("engine_version", plan.engine.engine_version))
