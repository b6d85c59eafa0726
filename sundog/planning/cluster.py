"""Kubernetes manifest of a fleet, and what all files for clusters share: images, resources, probes."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from sundog.planning.search import Candidate
from sundog.planning.serving import ServerGroup, engine_version_of, groups_of, router_of, vllm_options

if TYPE_CHECKING:
    from sundog.sweeps.cell import Plan


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Facts about the model in the files for a cluster, equal for all pools."""

    repository: str
    """Repository on Hugging Face, or the model's name as it was given."""
    is_path: bool
    size_gib: int
    """Size of the volume for the weights in GiB: a fifth more than the weights."""
    start_s: int
    """Seconds within which a server loads the weights."""

    @classmethod
    def of(cls, plan: "Plan") -> "ClusterFacts":
        from sundog.sim.hardware.model import load_model
        from sundog.sim.hardware.repositories import repository_of

        name = plan.target.model
        num_bytes = load_model(name).weight_bytes()
        found = repository_of(name)
        return cls(
            found or name,
            is_path=found is None,
            size_gib=math.ceil(ROOM * num_bytes / 2**30),
            start_s=math.ceil((LEAST_START_S + num_bytes / LOAD_BYTES_PER_S) / PROBE_S) * PROBE_S,
        )

    @property
    def remark(self) -> str:
        """Comment if the model's repository is not known, else an empty text."""
        where = "  # no repository of Hugging Face is known: give one, or the path of a volume"
        return where if self.is_path else ""


ROOM = 1.2
LEAST_START_S, LOAD_BYTES_PER_S, PROBE_S = 600, 100e6, 10
"""Least seconds of a start, bytes per second at which weights are loaded over a network (both generous), and
seconds between two probes.
"""
SHARED_MEMORY = "16Gi"
"""Size of /dev/shm, over which processes of vLLM exchange tensors; a container has 64 MiB by default."""
ROCM_SINCE = (0, 14)
"""First version of vLLM with its own image for ROCm."""


class Machine(NamedTuple):
    """Names of a GPU in a cluster: its resource, the chart's accelerator, and the image of the server."""

    resource: str
    accelerator: str
    image: str
    remark: str = ""


def machine_of(gpu: str, engine_version: str) -> Machine:
    """Return the names for servers of this version of vLLM on this GPU."""
    from sundog.actors.core.engine_version import parse_version
    from sundog.sim.hardware.gpu import load_gpu

    number = engine_version.strip().removeprefix("v")
    tag = f"v{number}" + ".0" * (number.count(".") < 2)
    if load_gpu(gpu).vendor == "nvidia":
        return Machine("nvidia.com/gpu", "nvidia", f"vllm/vllm-openai:{tag}")
    if parse_version(engine_version) >= ROCM_SINCE:
        return Machine("amd.com/gpu", "amd", f"vllm/vllm-openai-rocm:{tag}")
    remark = f"  # choose the dated tag with vLLM {number}"
    return Machine("amd.com/gpu", "amd", "rocm/vllm:latest", remark)


def probes(port: str, start_s: int, indent: int) -> str:
    """Return the probes of a container whose weights take `start_s` to load, indented."""
    text = f"""startupProbe:  # loading {start_s} s at most
  httpGet: {{path: /health, port: {port}}}
  periodSeconds: {PROBE_S}
  failureThreshold: {start_s // PROBE_S}
readinessProbe:
  httpGet: {{path: /health, port: {port}}}
  periodSeconds: 5
livenessProbe:
  httpGet: {{path: /health, port: {port}}}
  periodSeconds: 10
  failureThreshold: 6
"""
    return "".join(f"{' ' * indent}{line}\n" for line in text.splitlines())


def side_channel(role: str | None, indent: int) -> str:
    """Return the variable by which servers of two pools find each other's keys and values, indented.

    vLLM's default is `localhost` (its page on NixlConnector), which no other pod reaches.
    """
    if role is None:
        return ""
    lines = ("- name: VLLM_NIXL_SIDE_CHANNEL_HOST", "  valueFrom:", "    fieldRef: {fieldPath: status.podIP}")
    return "".join(f"{' ' * indent}{line}\n" for line in lines)


def listed(words: Sequence[str], indent: int) -> str:
    """Return the words as items of a YAML list."""
    return "\n".join(f"{' ' * indent}- {json.dumps(word)}" for word in words)


def deployment(winner: Candidate, plan: "Plan") -> str:
    """Return a Kubernetes Deployment and a Service for each of the winner's pools; a router must be placed in
    front.
    """
    facts = ClusterFacts.of(plan)
    head = (
        "# kubectl create secret generic hf-token --from-literal=HF_TOKEN=...\n"
        f"# The fleet was simulated with the router {router_of(winner, plan)}.\n"
    )
    return head + "---\n".join(_deployed(winner, plan, group, facts) for group in groups_of(winner))


def _deployed(winner: Candidate, plan: "Plan", group: ServerGroup, facts: ClusterFacts) -> str:
    name = "vllm" if group.role is None else f"vllm-{group.role}"
    gpu = group.machine.settings["gpu"]
    machine = machine_of(gpu, engine_version_of(winner, plan))
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
      terminationGracePeriodSeconds: 120
      containers:
        - name: vllm
          image: {machine.image}{machine.remark}
          command: [vllm, serve]
          args:{facts.remark}
{listed([facts.repository, *vllm_options(winner, plan, group)], 12)}
          env:
            - name: HF_TOKEN
              valueFrom:
                secretKeyRef: {{name: hf-token, key: HF_TOKEN, optional: true}}
            - {{name: HF_HOME, value: /models}}
{side_channel(group.role, 12)}          ports:
            - {{name: http, containerPort: 8000}}
{probes("http", facts.start_s, 10)}          resources:
            limits: {{{machine.resource}: {group.machine.num_gpus}}}  # {gpu}
          volumeMounts:
            - {{name: shm, mountPath: /dev/shm}}
            - {{name: models, mountPath: /models}}
      volumes:
        - name: shm
          emptyDir: {{medium: Memory, sizeLimit: {SHARED_MEMORY}}}
        - name: models  # a claim on a volume that pods share spares each its download
          emptyDir: {{sizeLimit: {facts.size_gib}Gi}}
---
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  selector: {{app: {name}}}
  ports:
    - {{name: http, port: 8000, targetPort: http}}
"""
