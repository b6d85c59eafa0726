"""Cost of a request in fleets of 1 to 256 engines at 16 requests a second each, as whole processes.

An engine of every fleet serves equally many requests, one alone more, so that batches are alike. What engines
cost that serve one request is measured apart, and left out of what a request costs. Then what the choice of
each router costs by itself, among as many replicas. Plain, or with `--compiled` in a compiled copy.
"""

import sys
import tempfile
import time
from pathlib import Path

from sundog.actors.core.request import Submit
from sundog.actors.core.routers import ROUTERS, Fleet
from sundog.actors.core.routers.fleet_state import FleetState
from sundog.actors.core.routers.prefix_index import new_index
from sundog.actors.policy_file import find_router
from tests.bench.runs import H100, copied, poisson, replayed

PER_S, EACH, FEWEST = 16, 600, 9_600
FLEETS = (1, 16, 64, 256)
NUM_CHOICES, NUM_BLOCKS = 500, 60


def main() -> None:
    """Print a line for each fleet, and one for each router."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = copied(folder / "source", compiled="--compiled" in sys.argv)
        print("engines  requests  CPU s, one  CPU s, all  us a request    MB", flush=True)
        for engines in FLEETS:
            count = max(EACH * engines, FEWEST)
            trace, options = poisson(PER_S * engines, folder, count), f"{H100} --replicas {engines}"
            one_s = replayed(source, trace, f"{options} --limit 1").cpu_s
            whole = replayed(source, trace, options)
            each_us = (whole.cpu_s - one_s) / (count - 1) * 1e6
            sizes = f"{engines:>7}  {count:>8}  {one_s:>10.2f}  {whole.cpu_s:>10.2f}"
            print(f"{sizes}  {each_us:>12.0f}  {whole.megabytes:>4.0f}", flush=True)
    print(f"\nus a choice, plain{'':<12}" + "".join(f"{engines:>8}" for engines in FLEETS))
    for name in ROUTERS:
        text = "weighted:prefix=1,load=0.5" if name == "weighted" else name
        print(f"{text:<30}" + "".join(f"{choice_us(text, engines):>8.1f}" for engines in FLEETS), flush=True)


def choice_us(router: str, engines: int) -> float:
    """The mean CPU time of a choice where each replica has four requests, of prompts of 60 blocks."""
    policy = find_router(router)
    state = FleetState(new_index(policy.index), 0)
    for _ in range(engines):
        state.add(10_000, 16)
    fleet, taken_s = Fleet(state, policy.new_memory()), 0.0
    for number in range(4 * engines + NUM_CHOICES):
        keys = tuple((number % (2 * engines), place) for place in range(NUM_BLOCKS))
        name, session = f"r{number}", f"s{number % (2 * engines)}"
        request = Submit(name, 0.0, 16 * NUM_BLOCKS + 1, 100, block_hashes=keys, session=session)
        state.begin(0.0)
        begin_s = time.process_time()
        replica = policy.choose(request, fleet)
        taken_s += (time.process_time() - begin_s) * (number >= 4 * engines)
        assert replica is not None, "the built-in routers hold nothing"
        state.send(request, replica)
        if number >= 4 * engines:
            state.end(f"r{number - 4 * engines}")
    return taken_s / NUM_CHOICES * 1e6


if __name__ == "__main__":
    main()
