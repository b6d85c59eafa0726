"""Invariants of every configuration, and a run that is checked against them."""

import hashlib
import io
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from sundog.actors.core.config import ConfigError
from sundog.actors.kernel.actor import Actor
from sundog.actors.messages import EngineUp, Heard, StepOutput
from sundog.builds.replayed import play
from sundog.builds.simulated import deploy
from sundog.ends import leaves
from sundog.library.arguments import records_of
from sundog.options.simulation import parse_rate
from sundog.sim.record.recorder import Recorder
from sundog.sim.trace.record import TraceRequest
from sundog.sim.workload.resample import retimed
from tests.fuzz.lattice import LAST_S, WITNESS, WITNESS_TOKENS, Configuration

MOST_AT_ONCE = 3000
"""Steps of all replicas together that may end in one instant, empty ones and those with refusals included."""


KEPT_S = 490.0
"""Seconds after which blocks are free of a request that was lost on its way between two pools."""


class Broken(Exception):
    """A configuration broke a law."""


class Watch(Actor[Heard]):
    """A listener that raises as soon as time stands still, or a replica has lost blocks."""

    def __init__(self, quiet_s: float, num_blocks: Sequence[int], block_size: int) -> None:
        super().__init__("watch")
        self._quiet_s, self._num_blocks = quiet_s, num_blocks
        self._of_witness = -(-WITNESS_TOKENS // block_size)
        self._instant_s, self._num_steps = -1.0, 0

    def handle(self, message: Heard) -> None:
        match message:
            case StepOutput():
                self._step(message)
            case EngineUp():
                pass
            case _:
                pass

    def _step(self, output: StepOutput) -> None:
        now_s = self.clock.now_s()
        self._num_steps = self._num_steps + 1 if now_s == self._instant_s else 1
        self._instant_s = now_s
        if self._num_steps > MOST_AT_ONCE:
            raise Broken(f"time stands still at {now_s:.6f} s: {self._num_steps} steps have ended then")
        if not 0 <= output.num_free_blocks <= self._num_blocks[output.replica]:
            raise Broken(f"replica {output.replica} has {output.num_free_blocks} free blocks")
        is_empty = not (output.num_running or output.num_waiting)
        num_held = self._num_blocks[output.replica] - output.num_free_blocks
        names = [each.request_id for each in (*output.batch.admitted, *output.finished)]
        if not all(name.startswith(WITNESS) for name in names):  # a slow pool still works off what came
            self._quiet_s = max(self._quiet_s, now_s + KEPT_S)
        # A witness may be on its way to be decoded.
        if now_s >= self._quiet_s and is_empty and num_held > self._of_witness:
            raise Broken(f"replica {output.replica} has lost {num_held} blocks")


class Built:
    """What a configuration asks for, built once; raises ConfigError if that is refused."""

    def __init__(self, configuration: Configuration) -> None:
        with TemporaryDirectory() as folder:
            target, _, self._load, _, engine = records_of(configuration.write(Path(folder)))
            self._simulated, self._seed = deploy(engine, target), engine.seed
        self._rows: Sequence[TraceRequest] = configuration.rows
        self._quiet_s = self._rows[-1].arrival_s - LAST_S / 10
        if self._load.request_rate is not None:  # the witnesses come with all others
            self._rows = list(retimed(self._rows, parse_rate(self._load.request_rate), self._seed))
            self._quiet_s = math.inf

    def run(self, *, decode_runs: bool = True) -> Recorder:
        """Replay the configuration once, under watch."""
        config = replace(self._simulated.config, decode_runs=decode_runs, debug=True)
        simulated, plan = replace(self._simulated, config=config), self._simulated.plan
        capacities = [simulated.capacity] * config.replicas
        if plan is not None:
            capacities = [engine.capacity for engine in plan.engines]
        num_blocks = [each.num_blocks - 1 for each in capacities]
        watch = Watch(self._quiet_s, num_blocks, config.scheduler.block_size)
        return play(simulated, self._rows, self._load, self._seed, listeners=[watch])


def digest(recorder: Recorder) -> str:
    """Return a text that differs if any figure or any column of a run does."""
    from sundog.sim.figures.metrics import summarize

    found = hashlib.blake2b(summarize(recorder).to_json().encode(), digest_size=12)
    for column in recorder.columns.stored():
        found.update(repr(list(column)).encode())
    return found.hexdigest()


def are_alike(one: object, other: object) -> bool:
    """True if two JSON values are equal, numbers to 1e-12: sums of busy time round as steps are grouped."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(are_alike(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(are_alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-12, abs_tol=1e-15)
    return one == other


def check_steps(recorder: Recorder, by_steps: Recorder) -> None:
    """Runs of decodes change no row of any request, and no figure."""
    from sundog.sim.figures.metrics import summarize

    rows = [repr(list(map(list, each.columns.stored()))) for each in (recorder, by_steps)]
    figures = [json.loads(summarize(each).to_json()) for each in (recorder, by_steps)]
    if rows[0] != rows[1]:
        raise Broken("runs of decodes change the rows of requests")
    if not are_alike(*figures):
        raise Broken("runs of decodes change the figures")


def check_accounts(configuration: Configuration, recorder: Recorder) -> None:
    """Every request that came has one end, and all figures count the same ones."""
    from sundog.sim.figures.metrics import summarize
    from sundog.sim.figures.sweep.played import load_of, measure, played
    from sundog.sim.figures.totals import NO_TERMS
    from sundog.sim.show.summary_table import print_summary

    summary = summarize(recorder)
    reasons = recorder.columns.reason
    counts = {
        "finished": summary.num_finished,
        "aborted": summary.num_aborted,
        "refused": summary.num_refused,
        "failed": summary.num_failed,
    }
    if None in reasons:
        raise Broken(f"{recorder.columns.request_id[reasons.index(None)]} has no end")
    if sum(counts.values()) != summary.num_requests:
        raise Broken(f"{counts} are not {summary.num_requests} requests")
    names, asked = recorder.columns.request_id, {row.request_id for row in configuration.rows}
    if len(set(names)) != len(names) or not asked <= set(names):
        raise Broken(f"of {len(asked)} requests {len(asked & set(names))} came, of {len(names)} rows")
    makes_more = '"spike"' in configuration.faults or '"retries"' in configuration.faults
    if not makes_more and len(names) != len(asked):
        raise Broken(f"{len(names)} requests came of {len(asked)}")
    printed = io.StringIO()
    print_summary(summary, file=printed)
    found = re.search(r"requests +(\d[\d,]*) of [\d,]+ finished(.*)", printed.getvalue())
    assert found is not None
    shown = {what: int(count.replace(",", "")) for count, what in re.findall(r"(\d[\d,]*) (\w+)", found[2])}
    shown["finished"] = int(found[1].replace(",", ""))
    if shown != {what: count for what, count in counts.items() if count or what == "finished"}:
        raise Broken(f"the table says {shown}, the summary {counts}")
    measured = measure(played(recorder, NO_TERMS, load_of(configuration.rows)), set())
    swept = {what: int(measured[f"num_{what}"]) for what in counts}
    if swept != counts:
        raise Broken(f"a sweep says {swept}, the summary {counts}")


def check_python(configuration: Configuration, recorder: Recorder) -> None:
    """`sundog.replay` keeps on disk what a recorder has in memory."""
    import sundog
    from sundog.sim.figures.metrics import summarize

    with TemporaryDirectory() as folder:
        options = configuration.write(Path(folder))
        result = sundog.replay(Path(folder) / "trace.jsonl", **options)
        summary = summarize(recorder)
        for name in ("num_requests", "num_finished", "num_aborted", "num_refused", "num_failed"):
            if result.figures[name] != getattr(summary, name):
                raise Broken(f"Python has {name} {result.figures[name]}, the replay {getattr(summary, name)}")


def check(
    configuration: Configuration,
    *,
    thoroughly: bool = False,
    on_refusal: Callable[[str], None] = lambda reason: None,
) -> str | None:
    """Hold a configuration against every law; returns its digest, or None if it is refused. Raises Broken."""
    try:
        built = Built(configuration)
    except ConfigError as error:
        on_refusal(str(error))
        return None
    try:
        recorder = built.run()
        check_accounts(configuration, recorder)
        found = digest(recorder)
        check_steps(recorder, built.run(decode_runs=False))
        if thoroughly:
            if digest(Built(configuration).run()) != found:
                raise Broken("the same seed gives other bytes")
            check_python(configuration, recorder)
    except Broken:
        raise
    except Exception as error:
        cause = next(chain(leaves(error), [error]))
        if isinstance(cause, Broken):
            raise cause from None
        raise Broken(f"{type(cause).__name__}: {cause}") from error
    return found
