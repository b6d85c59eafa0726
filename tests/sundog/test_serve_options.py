"""Refusals of `sundog serve` before loading, and the step times of an emulated server."""

import shutil
import socket
from pathlib import Path
from statistics import median

import pytest

from sundog.builds.emulated import emulated
from sundog.builds.simulated import deploy
from sundog.options.engine import EngineOptions
from sundog.options.serving import EmulatedServing
from sundog.options.simulation import CostOptions, TargetOptions
from sundog.sim.backend import CostBackend
from sundog.sim.cost.work import StepWork
from tests.live import EMULATED, Stream, live
from tests.sundog.test_runs import refused, sundog

COSTS = [
    CostOptions(),
    CostOptions(host_overhead=False),
    CostOptions(step_scale=3.0),
    CostOptions(cost="roofline"),
]
DECODES = StepWork(8, 8 * 500, (), 8)


def test_a_port_in_use_is_refused_before_the_model_is_looked_at() -> None:
    """The model is not there either, and loading one takes long."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = sundog("serve", "/no/such/model", "--port", port)
    refused(done, f"port {port} on 127.0.0.1 is in use", "--port")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--stall-timeout", "0"), ("--stall-timeout", "86,400")),
        (("--load-timeout", "0"), ("--load-timeout", "86,400")),
        (("--on", "rays"), ("--on is rays", "ray:HOST:PORT")),
        (("--on", "ray:nowhere"), ("--on is ray:nowhere", "ray:HOST:PORT")),
        (("--on", "ray:ray://head:10001"), ("--on is", "without ray://")),
        (("--on", "ray", "--in-process"), ("--on ray cannot be combined with --in-process", "leave one out")),
        (("--ray-cpus", "2"), ("--ray-cpus", "add --on ray")),
        (("--ray-wait", "2"), ("--ray-wait", "add --on ray")),
        (("--ray-host", "here"), ("--ray-host", "add --on ray")),
        (
            ("--record", "runs", "--messages"),
            ("--messages records the actors of one process", "--in-process"),
        ),
    ],
)
def test_what_processes_cannot_do_is_refused_by_name(
    options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """Before anything is begun."""
    refused(sundog("serve", "--port", 0, *options), *words)


@pytest.mark.parametrize("option", [("--step-scale", "2"), ("--cost", "roofline"), ("--no-host-overhead",)])
def test_a_real_model_has_no_cost_of_steps(option: tuple[str, ...]) -> None:
    """By the option's name."""
    done = sundog("serve", "--port", 0, *option)
    refused(done, f"{option[0]} is an option of `sundog emulate`")


@pytest.mark.parametrize("costs", COSTS, ids=str)
def test_simulated_serving_takes_the_time_that_replays_take(costs: CostOptions) -> None:
    """The same defaults, and the same options: host overhead, scale and cost model."""
    engine = EngineOptions()
    served = emulated("qwen3-8b", EmulatedServing(), engine, costs)
    backend = served.new_engine(0)
    assert isinstance(backend, CostBackend)
    target = TargetOptions(model="qwen3-8b", gpu="h100", **vars(costs))
    replayed = deploy(engine, target).cost
    assert backend._pace.cost.step_s(DECODES) == replayed.step_s(DECODES)


def test_a_served_step_is_scaled() -> None:
    """Tokens come so much later, on the wall clock."""
    with live(*EMULATED, "--step-scale", "20") as server:
        stream = Stream(server, max_tokens=6)
        stream.whole()
        gaps_s = [b - a for a, b in zip(stream.times_s, stream.times_s[1:], strict=False)]
        assert median(gaps_s[:5]) > 0.08
        assert server.stop() == 0


@pytest.mark.parametrize(
    "command",
    [
        (*EMULATED, "--replicas", "2", "--messages", "--step-log", "DIR/steps.jsonl"),
        ("sundog", "serve", "--port", "0", "--in-process", "--messages", "--step-log", "DIR/steps.jsonl.gz"),
        ("sundog", "serve", "--port", "0", "--replicas", "2"),
    ],
    ids=["emulated", "real", "processes"],
)
def test_a_record_that_is_removed_while_it_is_written_is_missed(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    """One warning for each of its files, which it names; the server goes on."""
    folder = tmp_path / "record"
    options = [word.replace("DIR", str(folder)) for word in command]
    with live(*options, "--record", str(folder)) as server:
        assert server.complete(max_tokens=2).status_code == 200
        names = sorted(path.name for path in folder.iterdir())
        assert len(names) == (3 if "--messages" in command else 1)
        shutil.rmtree(folder)
        assert server.complete(max_tokens=2).status_code == 200
        server.until_it_says("it was removed while being written")
        assert server.complete(max_tokens=2).status_code == 200
        assert server.stop() == 0
    missed = [line for line in server.said if "it was removed while being written" in line]
    assert [sum(f"{folder / name}: it was" in line for line in missed) for name in names] == [1] * len(names)
    assert len(missed) == len(names) and "Traceback" not in "".join(server.said), server.said


def test_an_option_of_the_other_kind_of_server_names_it() -> None:
    """In both directions, before anything is begun."""
    refused(sundog("serve", "--port", 0, "--engine-version", "0.14"), "is an option of `sundog emulate`")
    refused(sundog("emulate", "--port", 0, "--in-process"), "is an option of `sundog serve`")
