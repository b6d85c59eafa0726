"""A fleet in the words of those who run it: commands, a Kubernetes manifest, values for llm-d's chart."""

import json
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sundog.options.row import spelled
from sundog.planning.search import Candidate

if TYPE_CHECKING:
    from sim.figures.sweep.cells import Settings
    from sundog.options.simulation import ReadingOptions
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


def commands(winner: Candidate, plan: "Plan", reading: "ReadingOptions") -> Iterator[str]:
    """The commands that simulate the fleet, and serve it, with every option that was asked for."""
    settings = winner.settings
    verb = "sweep" if plan.where.endswith(".toml") else "replay"
    words = ["sundog", verb, plan.where]
    for record in (plan.target, plan.engine, plan.load, reading, plan.terms):
        words += spelled(record, tuple(settings))
    words += _flags(settings)
    words += ["--replicas", str(winner.bought)]
    yield shlex.join(words)
    times = "" if winner.bought == 1 else f"  # {winner.bought} times, behind a router"
    yield f"{shlex.join(['vllm', 'serve', plan.target.model, *vllm_options(winner, plan)])}{times}"
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


def vllm_options(winner: Candidate, plan: "Plan") -> list[str]:
    """The options of `vllm serve` for a replica."""
    settings = {name: value for name, value in winner.settings.items() if name in SERVED}
    rest = [field for field in type(plan.engine).__dataclass_fields__ if field not in SERVED]
    words = list(spelled(plan.engine, (*rest, *settings)))
    words += _flags({"tensor_parallel_size": winner.settings["tensor_parallel_size"], **settings})
    words += OWN_POLICIES.get(str(winner.settings.get("policy", plan.engine.policy)), ())
    return [RENAMED.get(word, word) for word in words]


def deployment(winner: Candidate, plan: "Plan") -> str:
    """A Kubernetes Deployment of the winner's replicas; a Service or a router goes in front of it."""
    return f"""apiVersion: apps/v1
kind: Deployment
metadata:
  name: vllm
spec:
  replicas: {winner.bought}
  selector:
    matchLabels: {{app: vllm}}
  template:
    metadata:
      labels: {{app: vllm}}
    spec:
      containers:
        - name: vllm
          image: vllm/vllm-openai
          command: [vllm, serve]
          args:
{_listed([plan.target.model, *vllm_options(winner, plan)], 12)}
          ports: [{{containerPort: 8000}}]
          resources:
            limits: {{nvidia.com/gpu: {winner.num_gpus}}}
"""


def llm_d_values(winner: Candidate, plan: "Plan") -> str:
    """Values for llm-d's chart `llm-d-modelservice`: decode pods alone, which prefill, too.

    The chart writes the model and the ranks of tensor parallelism into vLLM's command itself
    (llm-d-incubation/llm-d-modelservice, values.yaml).
    """
    options = vllm_options(winner, plan)
    at = options.index("--tensor-parallel-size")
    options = options[:at] + options[at + 2 :]
    model = json.dumps(plan.target.model)
    return f"""modelArtifacts:
  name: {model}
  uri: {json.dumps(f"hf://{plan.target.model}")}
routing:
  servicePort: 8000
  proxy:
    enabled: false
decode:
  create: true
  replicas: {winner.bought}
  parallelism:
    tensor: {winner.settings["tensor_parallel_size"]}
  containers:
    - name: vllm
      image: vllm/vllm-openai
      modelCommand: vllmServe
      args:{" []" if not options else chr(10) + _listed(options, 8)}
      mountModelVolume: true
prefill:
  create: false
"""


def _listed(words: Sequence[str], indent: int) -> str:
    return "\n".join(f"{' ' * indent}- {json.dumps(word)}" for word in words)
