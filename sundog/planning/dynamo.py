"""Fleet for Dynamo: a DynamoGraphDeployment."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sundog.actors.config import ConfigError
from sundog.actors.core.engine_version import parse_version
from sundog.planning.cluster import SHARED_MEMORY, ClusterFacts, listed, machine_of
from sundog.planning.search import Candidate
from sundog.planning.serving import ServerGroup, engine_version_of, groups_of, router_of, vllm_options

if TYPE_CHECKING:
    from sundog.sweeps.cell import Plan

RELEASES = {(0, 23): "1.3.1", (0, 26): "1.4.2", (0, 28): "1.5.0", (0, 31): "1.6.0"}
"""A release of Dynamo with each version of vLLM (docs.nvidia.com/dynamo, "Compatibility").

Examples in ai-dynamo/dynamo are of the API nvidia.com/v1beta1 from 1.3 on.
"""
IMAGE = "nvcr.io/nvidia/ai-dynamo/vllm-runtime"
MODES = {"round-robin": "round-robin", "least-requests": "least-loaded", "prefix-aware": "kv"}
"""Dynamo's name for each router that it has, too (docs.nvidia.com/dynamo, "Router Guide")."""
EVENTS = {
    "publisher": "zmq",
    "topic": "kv-events",
    "endpoint": "tcp://*:20080",
    "enable_kv_cache_events": True,
}
"""Events from which the mode `kv` learns what workers cache (agg_router.yaml of the examples)."""


def dynamo_graph(winner: Candidate, plan: "Plan") -> str:
    """Return a DynamoGraphDeployment of the fleet: a frontend that routes, and a component for each pool.

    Names and fields in ai-dynamo/dynamo:

    - deploy/operator/api/v1beta1/dynamocomponentdeployment_types.go: components have `name`, `type`,
      `replicas`, `sharedMemorySize` and `podTemplate`, in which the container `main` needs an image; the
      operator adds ports, probes and what else it has defaults for.
    - examples/backends/vllm/deploy/v1beta1: `python3 -m dynamo.vllm` with `--model`, vLLM's options and
      `--disaggregation-mode`; the secret `hf-token-secret`; `DYN_ROUTER_MODE` of the frontend.

    A worker announces its own address to others (components/src/dynamo/vllm, args).
    """
    facts, groups, version = ClusterFacts.of(plan), groups_of(winner), engine_version_of(winner, plan)
    if foreign := [gpu for gpu in _gpus(groups) if machine_of(gpu, version).accelerator != "nvidia"]:
        raise _no_image(foreign[0])
    wanted = parse_version(version)
    carried = max((each for each in RELEASES if each <= wanted), default=min(RELEASES))
    own = ".".join(map(str, carried))
    image = f"{IMAGE}:{RELEASES[carried]}"
    remark = "" if carried == wanted else f"  # has vLLM {own}; {version} was simulated"
    router = router_of(winner, plan)
    mode = MODES.get(router.partition(":")[0])
    unlike = "" if mode else f"; Dynamo has none like it, so {MODES['round-robin']} is written"
    mode = mode or MODES["round-robin"]
    workers = "".join(_worker(group, winner, plan, facts, image, mode) for group in groups)
    return f"""# kubectl create secret generic hf-token-secret --from-literal=HF_TOKEN=...
# The fleet was simulated with the router {router}{unlike}.
apiVersion: nvidia.com/v1beta1
kind: DynamoGraphDeployment
metadata:
  name: sundog
spec:
  backendFramework: vllm
  components:
    - name: Frontend
      type: frontend
      replicas: 1
      podTemplate:
        spec:
          containers:
            - name: main
              image: {image}{remark}
              env:
                - {{name: DYN_ROUTER_MODE, value: {mode}}}
{workers}"""


def check_gpus(gpus: Sequence[str]) -> None:
    """Raise ConfigError, before any trial, if none of these GPUs can be in a graph."""
    from sundog.sim.hardware.gpu import load_gpu

    if all([load_gpu(gpu).vendor != "nvidia" for gpu in gpus]):
        raise _no_image(gpus[0])


def _no_image(gpu: str) -> ConfigError:
    return ConfigError(
        f"--dynamo: Dynamo's image of vLLM is for NVIDIA GPUs, and this fleet has {gpu}:"
        " use --manifest or --kustomize"
    )


def _gpus(groups: tuple[ServerGroup, ...]) -> list[str]:
    return [str(group.machine.settings["gpu"]) for group in groups]


def _worker(
    group: ServerGroup, winner: Candidate, plan: "Plan", facts: ClusterFacts, image: str, mode: str
) -> str:
    words = ["--model", facts.repository, *vllm_options(winner, plan, group)]
    if group.role is not None:
        words += ["--disaggregation-mode", group.role]
    if mode == "kv" and group.role != "decode":
        words += ["--kv-events-config", json.dumps(EVENTS)]
    name = {None: "Worker", "prefill": "PrefillWorker", "decode": "DecodeWorker"}[group.role]
    return f"""    - name: {name}
      type: {group.role or "worker"}
      replicas: {group.num_servers}
      sharedMemorySize: {SHARED_MEMORY}
      podTemplate:
        spec:
          containers:
            - name: main
              image: {image}
              command: [python3, -m, dynamo.vllm]
              args:{facts.remark}
{listed(words, 16)}
              envFrom:
                - secretRef: {{name: hf-token-secret, optional: true}}
              env:
                - {{name: HF_HOME, value: /models}}
              resources:
                limits: {{nvidia.com/gpu: "{group.machine.num_gpus}"}}  # {group.machine.settings["gpu"]}
              volumeMounts:
                - {{name: models, mountPath: /models}}
          volumes:
            - name: models
              emptyDir: {{sizeLimit: {facts.size_gib}Gi}}
"""
