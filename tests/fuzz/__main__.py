"""`python -m tests.fuzz`: random configurations against every law; each one that breaks a law is made
smaller.

python -m tests.fuzz --configurations 3000 --seed 7
python -m tests.fuzz --configurations 200 --digests    # to compare with the same of a compiled simulator
"""

import argparse
import logging
import signal
import sys
import time
import traceback
from pathlib import Path
from tempfile import mkdtemp
from types import FrameType

from tests.fuzz.lattice import Configuration, configuration
from tests.fuzz.laws import Broken, check

LONGEST_S = 300
"""Seconds of a configuration after which it is taken to hang."""
KEPT = ("seed", "max_model_len", "num_gpu_blocks", "pool")
"""Options that are not left out to make a configuration smaller."""


def broken(found: Configuration, thoroughly: bool) -> str | None:
    """Return the law that a configuration breaks."""
    signal.alarm(LONGEST_S)
    try:
        check(found, thoroughly=thoroughly)
    except Broken as error:
        return str(error).splitlines()[0]
    finally:
        signal.alarm(0)
    return None


def smaller(found: Configuration, thoroughly: bool, most_s: float = 120.0) -> Configuration:
    """Leave out what is not needed to break a law, for two minutes at most."""
    until_s, goes_on = time.monotonic() + most_s, True
    while goes_on and time.monotonic() < until_s:
        goes_on = False
        names = [name for name in found.options if name not in KEPT]
        names += ["rows"] * (len(found.rows) > 2) + ["faults"] * bool(found.faults)
        for name in names:
            fewer = found.without(name)
            try:
                is_broken = broken(fewer, thoroughly) is not None
            except Exception:  # noqa: BLE001  # what cannot be checked is not smaller
                is_broken = False
            if is_broken:
                found, goes_on = fewer, True
    return found


def hangs(_signal: int, _frame: FrameType | None) -> None:
    raise Broken(f"it takes more than {LONGEST_S} s")


def main() -> int:
    """Check the configurations that are asked for; 1 if any broke a law."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--configurations", type=int, default=300)
    parser.add_argument(
        "--seed", type=int, default=0, help="the first configuration; each further one has the next"
    )
    parser.add_argument("--digests", action="store_true", help="print a digest of each configuration's run")
    parser.add_argument("--whole", action="store_true", help="do not make failing ones smaller")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGALRM, hangs)
    num_refused, num_broken, begin_s = 0, 0, time.monotonic()
    for number in range(asked.configurations):
        seed = asked.seed + number
        found, thoroughly = configuration(seed), seed % 5 == 0
        signal.alarm(LONGEST_S)
        try:
            digest = check(found, thoroughly=thoroughly)
            num_refused += digest is None
            if asked.digests:
                print(seed, digest, flush=True)
        except Broken as error:
            signal.alarm(0)
            num_broken += 1
            print(f"configuration {seed}: {str(error).splitlines()[0]}", flush=True)
            if error.__cause__ is not None:
                traceback.print_exception(error.__cause__, limit=-4, file=sys.stderr)
            shown = found if asked.whole else smaller(found, thoroughly)
            print(f"    {shown.command(Path(mkdtemp(prefix=f'sundog-fuzz-{seed}-')))}", flush=True)
        finally:
            signal.alarm(0)
        if number % 50 == 49:
            print(
                f"{number + 1} configurations, {num_refused} refused, {num_broken} broken,"
                f" {time.monotonic() - begin_s:.0f} s",
                file=sys.stderr,
                flush=True,
            )
    print(f"{asked.configurations} configurations: {num_refused} were refused, {num_broken} broke a law")
    return 1 if num_broken else 0


if __name__ == "__main__":
    sys.exit(main())
