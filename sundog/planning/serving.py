"""A fleet in the words of its operators: commands, a Kubernetes manifest, values for llm-d's chart."""

import json
import shlex
from collections.abc import Iterator, Sequence
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
"""Options of an engine that vLLM has by the same names, but for `RENAMED`."""
RENAMED = {"--num-gpu-blocks": "--num-gpu-blocks-override"}
OWN_POLICIES = {"fcfs": (), "priority": ("--scheduling-policy", "priority")}


TRANSFER = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"})
"""The setting by which vLLM's servers of two pools hand keys and values over."""


class ServerGroup(NamedTuple):
    """Equal servers of a fleet: `role` is None where they do whole requests."""

    role: str | None
    num_servers: int
    machine: Candidate


def _groups(winner: Candidate) -> tuple[ServerGroup, ...]:
    assert winner.holding is not None
    if isinstance(winner, PoolsCandidate):
        numbers = winner.engines(winner.holding, winner.spare)
        return tuple(map(ServerGroup, ROLES, numbers, winner.parts))
    return (ServerGroup(None, winner.bought, winner),)


def commands(winner: Candidate, plan: "Plan", reading: "ReadingOptions") -> Iterator[str]:
    """The commands that simulate the fleet, and serve it, with every option that was asked for."""
    assert winner.holding is not None
    settings = dict(winner.settings_of(winner.holding, winner.spare))
    pools = [word for pool in str(settings.pop("pool", "")).split("+") if pool for word in ("--pool", pool)]
    verb = "sweep" if plan.where.endswith(".toml") else "replay"
    words = ["sundog", verb, plan.where]
    own = ("gpu", "tensor_parallel_size", *settings)
    for record in (plan.target, plan.engine, plan.load, reading, plan.terms):
        words += spelled(record, own)
    yield shlex.join([*words, *_flags(settings), *(pools or ("--replicas", str(winner.bought)))])
    for group in _groups(winner):
        words = ["vllm", "serve", plan.target.model, *vllm_options(winner, plan, group)]
        times = f"{group.num_servers} times" if group.num_servers > 1 else "once"
        place = "" if group.role is None else f"for {group.role} on {group.machine.settings['gpu']}, "
        is_alone = group.role is None and group.num_servers == 1
        yield shlex.join(words) + ("" if is_alone else f"  # {times}, {place}behind a router")
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
    """The options of `vllm serve` for a replica."""
    settings = {name: value for name, value in winner.settings.items() if name in SERVED}
    rest = [field for field in type(plan.engine).__dataclass_fields__ if field not in SERVED]
    words = list(spelled(plan.engine, (*rest, *settings)))
    words += _flags({"tensor_parallel_size": group.machine.settings["tensor_parallel_size"], **settings})
    words += OWN_POLICIES.get(str(winner.settings.get("policy", plan.engine.policy)), ())
    words += () if group.role is None else ("--kv-transfer-config", TRANSFER)
    return [RENAMED.get(word, word) for word in words]


def deployment(winner: Candidate, plan: "Plan") -> str:
    """A Kubernetes Deployment for each pool of the winner's; a Service or a router goes in front of them."""
    return "---\n".join(_deployed(winner, plan, group) for group in _groups(winner))


def _deployed(winner: Candidate, plan: "Plan", group: ServerGroup) -> str:
    name = "vllm" if group.role is None else f"vllm-{group.role}"
    return f"""apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}
spec:
  replicas: {group.num_servers}
  selector:
    matchLabels: {{app: {name}}}
  template:
    metadata:
      labels: {{app: {name}}}
    spec:
      containers:
        - name: vllm
          image: vllm/vllm-openai
          command: [vllm, serve]
          args:
{_listed([plan.target.model, *vllm_options(winner, plan, group)], 12)}
          ports: [{{containerPort: 8000}}]
          resources:
            limits: {{nvidia.com/gpu: {group.machine.num_gpus}}}  # {group.machine.settings["gpu"]}
"""


def llm_d_values(winner: Candidate, plan: "Plan") -> str:
    """Values for llm-d's chart `llm-d-modelservice`: two pools, or decode pods that prefill, too.

    The chart writes the model and the ranks of tensor parallelism into vLLM's command itself
    (llm-d-incubation/llm-d-modelservice, values.yaml).
    """
    model = json.dumps(plan.target.model)
    groups = {group.role or "decode": group for group in _groups(winner)}
    return f"""modelArtifacts:
  name: {model}
  uri: {json.dumps(f"hf://{plan.target.model}")}
routing:
  servicePort: 8000
  proxy:
    enabled: {"true" if "prefill" in groups else "false"}
{"".join(_pods(role, groups.get(role), winner, plan) for role in ("decode", "prefill"))}"""


def _pods(role: str, group: ServerGroup | None, winner: Candidate, plan: "Plan") -> str:
    if group is None:
        return f"{role}:\n  create: false\n"
    options = vllm_options(winner, plan, group)
    at = options.index("--tensor-parallel-size")
    options = options[:at] + options[at + 2 :]
    return f"""{role}:
  create: true  # on {group.machine.settings["gpu"]}
  replicas: {group.num_servers}
  parallelism:
    tensor: {group.machine.settings["tensor_parallel_size"]}
  containers:
    - name: vllm
      image: vllm/vllm-openai
      modelCommand: vllmServe
      args:{" []" if not options else chr(10) + _listed(options, 8)}
      mountModelVolume: true
"""


def _listed(words: Sequence[str], indent: int) -> str:
    return "\n".join(f"{' ' * indent}- {json.dumps(word)}" for word in words)
