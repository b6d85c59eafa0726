"""What a request costs in fleets of 1 to 256 engines at 16 requests a second each, as whole processes.

What engines cost that serve one request is measured apart, and left out of what a request costs. Plain, or
with `--compiled` in a compiled copy.
"""

import sys
import tempfile
from pathlib import Path

from tests.bench.runs import H100, copied, poisson, replayed

COUNT, PER_S = 10_000, 16
FLEETS = (1, 16, 64, 256)


def main() -> None:
    """Print a line for each fleet."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = copied(folder / "source", compiled="--compiled" in sys.argv)
        print("engines  CPU s, one request  CPU s, 10,000  us a request", flush=True)
        for engines in FLEETS:
            trace, options = poisson(PER_S * engines, folder, COUNT), f"{H100} --replicas {engines}"
            one = replayed(source, trace, f"{options} --limit 1").cpu_s
            all_s = replayed(source, trace, options).cpu_s
            each_us = (all_s - one) / (COUNT - 1) * 1e6
            print(f"{engines:>7}  {one:>18.2f}  {all_s:>13.2f}  {each_us:>12.0f}", flush=True)


if __name__ == "__main__":
    main()
