"""Files that a plan writes for clusters can be applied: by Kubernetes, llm-d and Dynamo."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # ships no types
import pytest
import yaml  # type: ignore[import-untyped]  # ships no types

from sundog.actors.config import ConfigError
from sundog.options.engine import EngineOptions
from sundog.options.simulation import LoadOptions, TargetOptions, TermsOptions
from sundog.planning.cluster import deployment, machine_of
from sundog.planning.dynamo import dynamo_graph
from sundog.planning.llm_d import kustomization, llm_d_values
from sundog.planning.pools import PoolsCandidate
from sundog.planning.search import Candidate
from sundog.sim.hardware.model import known_models, load_model
from sundog.sim.hardware.repositories import repositories, repository_of
from sundog.sweeps.cell import Plan


def plan_of(model: str, version: str = "0.23") -> Plan:
    engine, target = EngineOptions(engine_version=version, max_num_seqs=32), TargetOptions(model=model)
    return Plan({}, "chat.toml", engine=engine, target=target, load=LoadOptions(), terms=TermsOptions())


def fleet(gpu: str, ranks: int = 8, count: int = 2, **settings: Any) -> Candidate:
    settings = {"gpu": gpu, "tensor_parallel_size": ranks, **settings}
    return Candidate(settings, 1.0, num_gpus=ranks, most=9, holding=count)


def pools(prefill: str, decode: str) -> PoolsCandidate:
    parts = fleet(prefill, 1), fleet(decode, 4)
    return PoolsCandidate({}, 0.0, 0, most=1, holding=1, parts=parts, sizes=((3, 2),))


def documents(text: str) -> list[Any]:
    return list(yaml.safe_load_all(text))


def is_accepted(text: str, folder: Path) -> None:
    """By the schemas of Kubernetes, where kubernetes-validate is installed."""
    if (validate := shutil.which("kubernetes-validate")) is None:
        return
    (file := folder / "manifest.yaml").write_text(text)
    done = subprocess.run([validate, "--strict", file], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_deployment_has_what_a_server_needs(tmp_path: Path) -> None:
    """Its image is of the version that was priced; by hand, Llama-3.1-70B has 70.55 billion weights.

    Of two bytes each these are 131.4 GiB, and 158 with a fifth more; at 100 MB/s they take 1411 s, and with
    the 600 s of a start 2011, which are 202 probes.
    """
    text = deployment(fleet("mi300x", router="least-tokens"), plan_of("llama-3.1-70b"))
    is_accepted(text, tmp_path)
    found, service = documents(text)
    spec = found["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["image"] == "vllm/vllm-openai-rocm:v0.23.0"
    assert container["resources"] == {"limits": {"amd.com/gpu": 8}}
    assert container["command"] == ["vllm", "serve"]
    asked = ["--max-num-seqs", "32", "--tensor-parallel-size", "8"]
    assert container["args"] == ["meta-llama/Llama-3.1-70B-Instruct", *asked]
    volumes = {each["name"]: each["emptyDir"] for each in spec["volumes"]}
    mounts = {each["mountPath"]: volumes[each["name"]] for each in container["volumeMounts"]}
    assert mounts["/dev/shm"]["medium"] == "Memory" and mounts["/models"] == {"sizeLimit": "158Gi"}
    token, home = container["env"]
    assert token["valueFrom"]["secretKeyRef"] == {"name": "hf-token", "key": "HF_TOKEN", "optional": True}
    assert home == {"name": "HF_HOME", "value": "/models"}
    startup = container["startupProbe"]
    assert startup["failureThreshold"] * startup["periodSeconds"] == 2020
    ports = {each["name"] for each in container["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert (
            container[probe]["httpGet"]["path"] == "/health" and container[probe]["httpGet"]["port"] in ports
        )
    labels = found["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert found["spec"]["selector"]["matchLabels"] == labels and found["spec"]["replicas"] == 2
    assert service["spec"]["ports"][0]["targetPort"] in ports
    assert "simulated with the router least-tokens." in text


@pytest.mark.parametrize(
    ("gpu", "version", "image", "resource"),
    [
        ("h100", "0.33", "vllm/vllm-openai:v0.33.0", "nvidia.com/gpu"),
        ("h100:pcie", "v0.19.1", "vllm/vllm-openai:v0.19.1", "nvidia.com/gpu"),
        ("mi300x", "0.14", "vllm/vllm-openai-rocm:v0.14.0", "amd.com/gpu"),
        ("mi300x", "0.11", "rocm/vllm:latest", "amd.com/gpu"),
    ],
)
def test_an_image_is_of_the_version_that_was_priced(
    gpu: str, version: str, image: str, resource: str
) -> None:
    machine = machine_of(gpu, version)
    assert (machine.image, machine.resource) == (image, resource)
    assert ("0.11" in machine.remark) == (image == "rocm/vllm:latest")


def test_values_of_the_chart_have_what_it_reads() -> None:
    """Decode pods listen behind the proxy at its target port; the chart counts the GPUs itself."""
    values = yaml.safe_load(llm_d_values(pools("h100", "h200"), plan_of("Qwen/Qwen3-8B")))
    artifacts = values["modelArtifacts"]
    assert artifacts["name"] == "Qwen/Qwen3-8B" and artifacts["uri"] == "hf://Qwen/Qwen3-8B"
    # 8.19 billion weights of two bytes are 15.3 GiB.
    assert artifacts["size"] == "19Gi" and artifacts["authSecretName"] == "hf-token"
    assert values["accelerator"] == {"type": "nvidia"} and values["routing"]["proxy"]["enabled"] is True
    for role, port, number, ranks in (("prefill", 8000, 3, 1), ("decode", 8200, 2, 4)):
        pods = values[role]
        (container,) = pods["containers"]
        assert pods["replicas"] == number and pods["parallelism"] == {"tensor": ranks}
        assert container["ports"] == [{"name": "http", "containerPort": port}]
        assert container["image"] == "vllm/vllm-openai:v0.23.0" and container["mountModelVolume"]
        (mount,) = container["volumeMounts"]
        assert mount["mountPath"] == "/dev/shm" and pods["volumes"][0]["emptyDir"]["medium"] == "Memory"
        assert json.loads(container["args"][-1])["kv_connector"] == "NixlConnector"
        assert "--tensor-parallel-size" not in container["args"] and "resources" not in container
        assert container["env"][0]["name"] == "VLLM_NIXL_SIDE_CHANNEL_HOST"
    assert values["routing"]["proxy"]["targetPort"] == 8200
    alone = yaml.safe_load(llm_d_values(fleet("mi300x"), plan_of("llama-3.1-70b")))
    assert alone["accelerator"] == {"type": "amd"} and alone["prefill"] == {"create": False}
    assert alone["decode"]["containers"][0]["ports"][0]["containerPort"] == 8000
    with pytest.raises(ConfigError, match="GPUs of two"):
        llm_d_values(pools("h100", "mi300x"), plan_of("llama-3.1-8b"))


BASE = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: ROLE, labels: {llm-d.ai/role: ROLE}}
spec:
  selector: {matchLabels: {llm-d.ai/role: ROLE}}
  template:
    metadata: {labels: {llm-d.ai/role: ROLE}}
    spec:
      initContainers: [{name: routing-proxy, image: REPLACE_ROUTING_SIDECAR_IMAGE, restartPolicy: Always}]
      containers:
        - name: modelserver
          image: REPLACE_MODEL_SERVER_IMAGE
          ports: [{name: modelserver, containerPort: 8000}]
          startupProbe: {httpGet: {path: /v1/models, port: modelserver}}
"""
"""What llm-d's recipe of a pool has: names, placeholders and a probe without times."""


def rendered(text: str, roles: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """Deployments by role, as kubectl makes them of the patches and a recipe like llm-d's."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl, which renders Kustomizations, is not installed")
    (base := folder / "base").mkdir(parents=True)
    (base / "roles.yaml").write_text("---".join(BASE.replace("ROLE", role) for role in roles))
    (base / "kustomization.yaml").write_text("resources: [roles.yaml]\n")
    (folder / "kustomization.yaml").write_text(re.sub(r"https://\S+", "base", text))
    command = [kubectl, "kustomize", folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    is_accepted(done.stdout, folder)
    return {each["spec"]["selector"]["matchLabels"]["llm-d.ai/role"]: each for each in documents(done.stdout)}


def test_a_kustomization_names_the_recipe_and_patches_its_container() -> None:
    """Names of llm-d's guides: Deployments, containers, the secret, labels that the router selects by."""
    found = yaml.safe_load(kustomization(fleet("mi300x"), plan_of("llama-3.1-70b")))
    assert found["kind"] == "Kustomization" and found["apiVersion"] == "kustomize.config.k8s.io/v1beta1"
    (recipe,) = found["resources"]
    assert "llm-d/llm-d//guides/" in recipe and "single-host/default?ref=v" in recipe
    (labels,) = found["labels"]
    assert labels["pairs"]["llm-d.ai/guide"] == "optimized-baseline" and labels["includeSelectors"]
    assert labels["pairs"]["llm-d.ai/accelerator-vendor"] == "amd"
    (patch,) = [yaml.safe_load(each["patch"]) for each in found["patches"]]
    assert (patch["metadata"]["name"], patch["spec"]["replicas"]) == ("decode", 2)
    (container,) = patch["spec"]["template"]["spec"]["containers"]
    assert container["name"] == "modelserver"
    assert container["image"] == "docker.io/vllm/vllm-openai-rocm:v0.23.0"
    assert container["resources"] == {"limits": {"amd.com/gpu": "8"}}
    secret = container["env"][0]["valueFrom"]["secretKeyRef"]
    assert secret == {"name": "llm-d-hf-token", "key": "HF_TOKEN", "optional": True}
    probe = container["startupProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] == 2020  # as in a Deployment


def test_a_kustomization_is_rendered_with_every_patch(tmp_path: Path) -> None:
    """Pools of two makers: decode listens behind the sidecar, and every image is given."""
    text = kustomization(pools("h100", "mi300x"), plan_of("llama-3.1-8b"))
    found = rendered(text, ("decode", "prefill"), tmp_path / "pools")
    for role, number, resource, num_gpus, image in (
        ("prefill", 3, "nvidia.com/gpu", "1", "docker.io/vllm/vllm-openai:v0.23.0"),
        ("decode", 2, "amd.com/gpu", "4", "docker.io/vllm/vllm-openai-rocm:v0.23.0"),
    ):
        deployed = found[role]
        assert deployed["metadata"]["name"] == f"sundog-{role}" and deployed["spec"]["replicas"] == number
        assert deployed["spec"]["template"]["metadata"]["labels"]["llm-d.ai/guide"] == "pd-disaggregation"
        assert "llm-d.ai/accelerator-vendor" not in deployed["metadata"]["labels"]
        spec = deployed["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        assert container["image"] == image
        assert container["resources"]["limits"] == {resource: num_gpus}
        assert container["startupProbe"]["httpGet"] == {"path": "/v1/models", "port": "modelserver"}
        assert container["startupProbe"]["failureThreshold"] > 60
        assert (container["args"][-2:] == ["--port", "8200"]) == (role == "decode")
        address = {each["name"]: each for each in container["env"]}["VLLM_NIXL_SIDE_CHANNEL_HOST"]
        assert address["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
        mounted = {each["name"] for each in container["volumeMounts"]}
        assert mounted == {each["name"] for each in spec["volumes"]} == {"shm", "models"}
        assert "REPLACE" not in json.dumps(deployed)
    alone = rendered(kustomization(fleet("h100"), plan_of("llama-3.1-8b")), ("decode",), tmp_path / "alone")
    container = alone["decode"]["spec"]["template"]["spec"]["containers"][0]
    assert "--port" not in container["args"] and "--kv-transfer-config" not in container["args"]


COMPONENT: dict[str, Any] = {
    "type": "object",
    "required": ["name", "podTemplate"],
    "additionalProperties": False,
    "properties": {
        "name": {"pattern": "^[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?$", "maxLength": 63},
        "type": {"enum": ["frontend", "worker", "prefill", "decode", "planner", "epp"]},
        "replicas": {"type": "integer", "minimum": 0},
        "sharedMemorySize": {"pattern": "^[0-9]+(Mi|Gi)$"},
        "podTemplate": {"type": "object", "required": ["spec"]},
    },
}
"""Of `DynamoComponentDeploymentSharedSpec` in nvidia.com/v1beta1, the fields that a plan writes."""
GRAPH: dict[str, Any] = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "nvidia.com/v1beta1"},
        "kind": {"const": "DynamoGraphDeployment"},
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "backendFramework": {"enum": ["sglang", "vllm", "trtllm"]},
                "components": {"type": "array", "items": COMPONENT},
            },
        },
    },
}


def components(text: str, folder: Path) -> dict[str, Any]:
    """Components of a graph by name, checked by Dynamo's schema, and their pods by that of Kubernetes."""
    jsonschema.validate(found := yaml.safe_load(text), GRAPH)
    for each in found["spec"]["components"]:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, **each["podTemplate"]}
        is_accepted(yaml.safe_dump(pod), folder)
    return {each["name"]: each for each in found["spec"]["components"]}


def main_of(component: dict[str, Any]) -> Any:
    """The container that the operator completes."""
    (container,) = component["podTemplate"]["spec"]["containers"]
    assert container["name"] == "main" and container["image"]
    return container


def test_a_graph_has_a_frontend_and_a_component_for_each_pool(tmp_path: Path) -> None:
    text = dynamo_graph(pools("h100", "h200"), plan_of("Qwen/Qwen3-8B"))
    found = components(text, tmp_path)
    assert [each["type"] for each in found.values()] == ["frontend", "prefill", "decode"]
    assert found["Frontend"]["replicas"] == 1
    for name, number, num_gpus in (("PrefillWorker", 3, "1"), ("DecodeWorker", 2, "4")):
        container = main_of(found[name])
        assert found[name]["replicas"] == number and found[name]["sharedMemorySize"] == "16Gi"
        assert container["command"] == ["python3", "-m", "dynamo.vllm"]
        assert container["args"][:2] == ["--model", "Qwen/Qwen3-8B"]
        assert container["args"][-2:] == ["--disaggregation-mode", found[name]["type"]]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": num_gpus}
        # Dynamo 1.3 has vLLM 0.23, which was priced.
        assert container["image"] == "nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.3.1"
    assert "has vLLM" not in text


@pytest.mark.parametrize(
    ("version", "release", "own"),
    [
        ("0.33", "1.6.0", "0.31"),
        ("0.27.1", "1.4.2", "0.26"),
        ("0.19", "1.3.1", "0.23"),
        ("0.28", "1.5.0", None),
    ],
)
def test_a_graph_says_where_its_image_has_another_vllm(version: str, release: str, own: str | None) -> None:
    """It is of the newest release whose vLLM is no newer, or of the oldest that knows this kind of graph."""
    text = dynamo_graph(fleet("h100"), plan_of("llama-3.1-8b", version))
    assert f"vllm-runtime:{release}" in text
    assert (f"has vLLM {own}; {version} was simulated" in text) == ("has vLLM" in text) == (own is not None)


@pytest.mark.parametrize(
    ("router", "mode"),
    [("round-robin", "round-robin"), ("least-requests", "least-loaded"), ("prefix-aware", "kv")],
)
def test_a_frontend_routes_as_was_simulated(router: str, mode: str, tmp_path: Path) -> None:
    """And workers publish what they cache if it is asked for."""
    text = dynamo_graph(fleet("h100", router=router), plan_of("llama-3.1-8b"))
    found = components(text, tmp_path)
    assert main_of(found["Frontend"])["env"] == [{"name": "DYN_ROUTER_MODE", "value": mode}]
    args = main_of(found["Worker"])["args"]
    assert ("--kv-events-config" in args) == (mode == "kv")
    assert "Dynamo has none" not in text
    if mode == "kv":
        assert json.loads(args[-1])["enable_kv_cache_events"] is True


def test_what_dynamo_does_not_have_is_said() -> None:
    """A router that it lacks in a comment, a GPU in a refusal."""
    text = dynamo_graph(fleet("h100", router="weighted:prefix=1"), plan_of("llama-3.1-8b"))
    assert "weighted:prefix=1; Dynamo has none like it, so round-robin is written." in text
    with pytest.raises(ConfigError, match="--dynamo: .* NVIDIA GPUs, and this fleet has mi300x"):
        dynamo_graph(pools("h100", "mi300x"), plan_of("llama-3.1-8b"))


def test_each_pool_is_a_deployment_with_a_service(tmp_path: Path) -> None:
    text = deployment(pools("h100", "mi300x"), plan_of("llama-3.1-8b"))
    is_accepted(text, tmp_path)
    kinds = [(each["kind"], each["metadata"]["name"]) for each in documents(text)]
    names = "vllm-prefill", "vllm-decode"
    assert kinds == [(kind, name) for name in names for kind in ("Deployment", "Service")]
    prefill, decode = (each["spec"] for each in documents(text)[::2])
    assert (prefill["replicas"], decode["replicas"]) == (3, 2)
    for each in prefill, decode:
        address = each["template"]["spec"]["containers"][0]["env"][-1]
        assert address["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    limits = [s["template"]["spec"]["containers"][0]["resources"]["limits"] for s in (prefill, decode)]
    assert limits == [{"nvidia.com/gpu": 1}, {"amd.com/gpu": 4}]


def test_every_described_model_has_a_repository_that_is_read_as_that_model() -> None:
    found = repositories()
    assert set(found) == set(known_models())
    spelled = {name: own for name, own in found.items() if own.partition("/")[2].lower().startswith(name[:5])}
    assert len(spelled) > 60
    for name, own in spelled.items():
        if name not in ("internlm2-7b", "mistral-7b-v0.3", "dots.llm1", "ernie-4.5-21b-a3b"):
            assert load_model(own).name == name, own


def test_a_model_in_a_folder_has_no_repository(tmp_path: Path) -> None:
    """Its manifest says so, beside the name that was given; a repository stays as it was given."""
    assert repository_of("Qwen/Qwen3-8B") == "Qwen/Qwen3-8B" and repository_of("./qwen") is None
    shape = Path("sim/hardware/models/llama-3.2-1b.json").read_text()
    (tmp_path / "config.json").write_text(shape)
    text = deployment(fleet("h100", 1), plan_of(str(tmp_path)))
    assert documents(text)[0]["spec"]["template"]["spec"]["containers"][0]["args"][0] == str(tmp_path)
    assert "no repository of Hugging Face is known" in text
    assert "no repository" not in deployment(fleet("h100", 1), replace(plan_of("llama-3.2-1b")))
