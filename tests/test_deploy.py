"""The files in `deploy/` match the server (metrics, routes, commands, files), and their image steps work."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
import yaml  # type: ignore[import-untyped]  # ships no types

from sundog.cli import cli
from tests.live import EMULATED, live
from tests.patience import START_S
from tests.test_layers import ROOT

DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"


def read_yaml(file: str) -> Any:
    return yaml.safe_load((DEPLOY / file).read_text(encoding="utf-8"))


@pytest.mark.long(reason="starts a server, and asks it over sockets", moderate=True)
def test_rules_and_dashboard_ask_for_metrics_that_there_are() -> None:
    """Of a server that has answered a request; drafts and adapters have samples where there are any."""
    with live(*EMULATED, "--time-scale", "8") as server:
        assert server.complete("hello", max_tokens=4).status_code == 200
        known = set(re.findall(r"(?m)^([\w:]+)[{ ]", httpx.get(f"{server.url}/metrics").text))
        known |= {"up"}
        for path in re.findall(r"path: (/\w+)", (DEPLOY / "kubernetes" / "deployment.yml").read_text()):
            assert httpx.get(f"{server.url}{path}").status_code == 200 or path == "/tmp"
    rules = [rule for group in read_yaml("prometheus/alerts.yml")["groups"] for rule in group["rules"]]
    asked = {name for rule in rules for name in re.findall(r"(?:vllm|sundog):\w+", rule["expr"])}
    assert len(rules) == 7 and asked and not asked - known


def test_every_alert_has_a_test_that_raises_it() -> None:
    rules = [rule for group in read_yaml("prometheus/alerts.yml")["groups"] for rule in group["rules"]]
    cases = [
        case for part in read_yaml("prometheus/alerts_test.yml")["tests"] for case in part["alert_rule_test"]
    ]
    assert {rule["alert"] for rule in rules} == {case["alertname"] for case in cases if "exp_alerts" in case}


def test_prometheus_accepts_its_files() -> None:
    """By its own promtool, where that is installed."""
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed: Debian's package prometheus has it")
    for arguments in (("check", "config", "prometheus.yml"), ("test", "rules", "alerts_test.yml")):
        done = subprocess.run(
            [promtool, *arguments], cwd=DEPLOY / "prometheus", capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_files_that_are_mounted_or_listed_exist() -> None:
    compose = read_yaml("compose.yml")
    sources = [
        volume.split(":")[0] for each in compose["services"].values() for volume in each.get("volumes", ())
    ]
    assert len(sources) == 4
    for source in sources:
        assert (DEPLOY / source).exists(), source
    build = compose["services"]["sundog"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).samefile(DOCKERFILE)
    for name in read_yaml("kubernetes/kustomization.yml")["resources"]:
        assert (DEPLOY / "kubernetes" / name).is_file()


def test_a_service_selects_the_pods_of_its_deployment() -> None:
    deployment, service = read_yaml("kubernetes/deployment.yml"), read_yaml("kubernetes/service.yml")
    pod = deployment["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert deployment["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (container,) = pod["spec"]["containers"]
    named = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert (
        service["spec"]["ports"][0]["targetPort"] in named
        and f"EXPOSE {named['http']}" in DOCKERFILE.read_text()
    )


def stages() -> dict[str, str]:
    """The stages of the Dockerfile by their names."""
    return dict(re.findall(r"(?ms)^FROM \S+ AS (\w+)\n(.*?)(?=^FROM|\Z)", DOCKERFILE.read_text()))


def started_by(stage: str) -> list[list[str]]:
    """What an image runs: its entry point, and the arguments that follow if none are given."""
    lines = re.findall(r"(?m)^(?:ENTRYPOINT|CMD) (\[.*\])$", stages()[stage])
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("stage", ["emulate", "serve"])
def test_every_option_that_is_given_is_one_of_the_command(stage: str) -> None:
    """Of the images, the unit, Compose and Kubernetes: with one that is refused nothing starts."""
    lines = started_by(stage)
    if stage == "serve":
        unit = (DEPLOY / "systemd" / "sundog.service").read_text()
        lines += [shlex.split(line) for line in re.findall(r"ExecStart=\S+/sundog serve (.*)", unit)]
        assert len(lines) == 2
    else:
        (container,) = read_yaml("kubernetes/deployment.yml")["spec"]["template"]["spec"]["containers"]
        lines += [read_yaml("compose.yml")["services"]["sundog"]["command"], container["args"]]
        assert len(lines) == 4
    asked = {word for line in lines for word in line if word.startswith("--")}
    command = cli.get_command(click.Context(cli), stage)
    assert command is not None
    known = {each for option in command.params for each in (*option.opts, *option.secondary_opts)}
    assert "--host" in asked and not asked - known


def steps(stage: str) -> list[str]:
    """The commands of pip in a stage of the Dockerfile, behind those that build the wheel."""
    found = stages()
    return [line for name in ("build", stage) for line in re.findall(r"(?m)^RUN (pip .*)$", found[name])]


@pytest.mark.long(reason="installs the server in an empty environment")
def test_the_steps_of_the_small_image_make_a_server(tmp_path: Path) -> None:
    """In an empty environment, without a compiler; then the image's command serves, and its check passes."""
    source, wheels = tmp_path / "src", tmp_path / "wheels"
    ignored = shutil.ignore_patterns("__pycache__", "*.so", ".venv*", ".git", ".*_cache", "tests", "build")
    shutil.copytree(ROOT, source, symlinks=True, ignore=ignored)
    wheels.mkdir()
    shutil.copy(ROOT / "requirements.lock", wheels)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=300)
    binaries = tmp_path / "venv" / "bin"
    env = os.environ | {"PATH": f"{binaries}:{os.environ['PATH']}", "CC": "false"}
    found = steps("emulate")
    assert len(found) == 2
    for step in found:
        step = step.replace("/wheels", str(wheels))
        done = subprocess.run(
            ["sh", "-c", step], cwd=source, env=env, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, done.stderr
    entry, command = started_by("emulate")
    check = json.loads(re.findall(r"CMD (\[\"python\".*\])", DOCKERFILE.read_text())[0])
    server = subprocess.Popen([*entry, *command], cwd=tmp_path, env=env)
    try:
        end_s = time.monotonic() + START_S
        while subprocess.run(check, cwd=tmp_path, env=env, stderr=subprocess.DEVNULL).returncode:
            assert server.poll() is None and time.monotonic() < end_s
            time.sleep(0.2)
    finally:
        server.terminate()
        server.wait(START_S)
