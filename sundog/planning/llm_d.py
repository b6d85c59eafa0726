"""Fleet for llm-d: values for its chart, and a Kustomization of its model servers."""

import json
import re
from typing import TYPE_CHECKING

from sundog.actors.config import ConfigError
from sundog.planning.cluster import (
    PROBE_S,
    SHARED_MEMORY,
    ClusterFacts,
    Machine,
    listed,
    machine_of,
    probes,
    side_channel,
)
from sundog.planning.search import Candidate
from sundog.planning.serving import ServerGroup, engine_version_of, groups_of, router_of, vllm_options

if TYPE_CHECKING:
    from sundog.sweeps.cell import Plan


def llm_d_values(winner: Candidate, plan: "Plan") -> str:
    """Return values for llm-d's chart `llm-d-modelservice`: two pools, or decode pods that also prefill.

    The chart writes the model and the tensor-parallel size into vLLM's command itself, requests GPUs by its
    `accelerator`, and mounts a volume of the model's size (llm-d-incubation/llm-d-modelservice, values.yaml
    and _helpers.tpl). If a proxy stands in front, decode pods listen at its target port.
    """
    facts = ClusterFacts.of(plan)
    groups = {group.role or "decode": group for group in groups_of(winner)}
    version = engine_version_of(winner, plan)
    kinds = {machine_of(group.machine.settings["gpu"], version).accelerator for group in groups.values()}
    if len(kinds) > 1:
        raise ConfigError("--llm-d: a release has GPUs of one maker, and this fleet has GPUs of two")
    return f"""# kubectl create secret generic hf-token --from-literal=HF_TOKEN=...
# The fleet was simulated with the router {router_of(winner, plan)}.
modelArtifacts:
  name: {json.dumps(facts.repository)}{facts.remark}
  uri: {json.dumps(f"hf://{facts.repository}")}
  size: {facts.size_gib}Gi
  authSecretName: hf-token
accelerator:
  type: {kinds.pop()}
routing:
  servicePort: 8000
  proxy:
    enabled: {"true" if "prefill" in groups else "false"}
    targetPort: {PROXIED_PORT}
{"".join(_pods(role, groups, winner, plan, facts) for role in ("decode", "prefill"))}"""


PROXIED_PORT = 8200
"""Port of servers that stand behind the chart's proxy."""


def _pods(
    role: str, groups: dict[str, ServerGroup], winner: Candidate, plan: "Plan", facts: ClusterFacts
) -> str:
    if (group := groups.get(role)) is None:
        return f"{role}:\n  create: false\n"
    options = vllm_options(winner, plan, group)
    at = options.index("--tensor-parallel-size")
    options = options[:at] + options[at + 2 :]
    gpu = group.machine.settings["gpu"]
    machine = machine_of(gpu, engine_version_of(winner, plan))
    port = PROXIED_PORT if role == "decode" and "prefill" in groups else 8000
    env = "" if group.role is None else "      env:\n" + side_channel(group.role, 8)
    return f"""{role}:
  create: true  # on {gpu}
  replicas: {group.num_servers}
  parallelism:
    tensor: {group.machine.settings["tensor_parallel_size"]}
  containers:
    - name: vllm
      image: {machine.image}{machine.remark}
      modelCommand: vllmServe
      args:{" []" if not options else chr(10) + listed(options, 8)}
{env}      ports:
        - {{name: http, containerPort: {port}}}
{probes("http", facts.start_s, 6)}      mountModelVolume: true
      volumeMounts:
        - {{name: shm, mountPath: /dev/shm}}
  volumes:
    - name: shm
      emptyDir: {{medium: Memory, sizeLimit: {SHARED_MEMORY}}}
"""


# --- Kustomize -----------------------------------------------------------------------------------------

RELEASE = "v0.9.0"
RECIPES = "https://github.com/llm-d/llm-d//guides/recipes/modelserver/base/single-host"
SIDECAR = ("ghcr.io/llm-d/llm-d-router-disagg-sidecar", "v0.10.0")
"""Image of the sidecar that has prompts computed elsewhere, of the release (llm-d's release notes)."""


def kustomization(winner: Candidate, plan: "Plan") -> str:
    """Return a Kustomization of llm-d's model servers: its recipe, patched to be this fleet.

    Since 0.7 llm-d deploys model servers by Kustomize in place of its chart (llm-d.ai/docs/0.7/proposals,
    "ModelService"). Names in llm-d/llm-d, folder guides:

    - recipes/modelserver/base/single-host/default has the Deployment `decode`, and pd/vllm beside it also
      `prefill` and a sidecar at port 8000 of `decode`, behind which vLLM listens at 8200; the container is
      `modelserver`, and so is its port, which the base's probes name.
    - recipes/modelserver/components/images/README.md: images of a recipe are placeholders.
    - optimized-baseline and pd-disaggregation, README and modelserver/gpu/vllm/base: the secret
      `llm-d-hf-token`, the labels; values of the guide's router select pods by `llm-d.ai/guide`.
    """
    facts = ClusterFacts.of(plan)
    groups = {group.role or "decode": group for group in groups_of(winner)}
    has_pools = "prefill" in groups
    recipe, guide = ("pd/vllm", "pd-disaggregation") if has_pools else ("default", "optimized-baseline")
    vendors = sorted({_machine(group, winner, plan).accelerator for group in groups.values()})
    vendor = f"      llm-d.ai/accelerator-vendor: {vendors[0]}\n" if len(vendors) == 1 else ""
    name, tag = SIDECAR
    images = (
        f"images:\n  - name: REPLACE_ROUTING_SIDECAR_IMAGE\n    newName: {name}\n    newTag: {tag}\n"
        if has_pools
        else ""
    )
    label = re.sub(r"[^A-Za-z0-9._-]", "-", facts.repository.rpartition("/")[2])[:63].strip("._-")
    return f"""# kubectl create secret generic llm-d-hf-token --from-literal=HF_TOKEN=...
# kubectl apply -k .   # and in front llm-d's router, as guides/{guide}/README.md installs it
# The fleet was simulated with the router {router_of(winner, plan)}.
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
  - {RECIPES}/{recipe}?ref={RELEASE}
namePrefix: sundog-
{images}labels:
  - pairs:
      llm-d.ai/guide: {guide}
      llm-d.ai/model: {json.dumps(label)}
{vendor}    includeSelectors: true
    includeTemplates: true
patches:
{"".join(_patch(role, group, winner, plan, facts) for role, group in groups.items())}"""


def _machine(group: ServerGroup, winner: Candidate, plan: "Plan") -> Machine:
    return machine_of(group.machine.settings["gpu"], engine_version_of(winner, plan))


def _patch(role: str, group: ServerGroup, winner: Candidate, plan: "Plan", facts: ClusterFacts) -> str:
    machine, gpu = _machine(group, winner, plan), group.machine.settings["gpu"]
    words = [facts.repository, *vllm_options(winner, plan, group)]
    if group.role == "decode":
        words += ["--port", str(PROXIED_PORT)]
    return f"""  - patch: |-
      apiVersion: apps/v1
      kind: Deployment
      metadata:
        name: {role}
      spec:
        replicas: {group.num_servers}
        template:
          spec:
            terminationGracePeriodSeconds: 120
            containers:
              - name: modelserver
                image: docker.io/{machine.image}{machine.remark}
                command: [vllm, serve]
                args:{facts.remark}
{listed(words, 18)}
                env:
                  - name: HF_TOKEN
                    valueFrom:
                      secretKeyRef: {{name: llm-d-hf-token, key: HF_TOKEN, optional: true}}
                  - {{name: HF_HOME, value: /models}}
                  - {{name: HOME, value: /models}}  # caches of compilers: the user may have no home
                  - {{name: USER, value: vllm}}
{side_channel(group.role, 18)}                startupProbe:  # loading {facts.start_s} s at most
                  periodSeconds: {PROBE_S}
                  failureThreshold: {facts.start_s // PROBE_S}
                resources:
                  limits: {{{machine.resource}: "{group.machine.num_gpus}"}}  # {gpu}
                volumeMounts:
                  - {{name: shm, mountPath: /dev/shm}}
                  - {{name: models, mountPath: /models}}
            volumes:
              - name: shm
                emptyDir: {{medium: Memory, sizeLimit: {SHARED_MEMORY}}}
              - name: models
                emptyDir: {{sizeLimit: {facts.size_gib}Gi}}
"""
