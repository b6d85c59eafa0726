"""The laws that every configuration keeps, and one run of it that is held against them."""

import hashlib
import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from actors.core.config import ConfigError
from actors.kernel.actor import Actor
from actors.messages import EngineUp, Heard, StepOutput
from sim.record.recorder import Recorder
from sundog.builds.replayed import play
from sundog.builds.simulated import Simulated
from sundog.ends import leaves
from sundog.library.functions import records_of
from tests.fuzz.lattice import LAST_S, Configuration

MOST_AT_ONCE = 3000
"""Steps of all replicas together that may end in one instant, empty ones and those with refusals included."""


class Broken(Exception):
    """A configuration broke a law."""


class Watch(Actor[Heard]):
    """A listener that raises as soon as time stands still, or a replica has lost blocks."""

    def __init__(self, quiet_s: float, num_blocks: Sequence[int]) -> None:
        super().__init__("watch")
        self._quiet_s, self._num_blocks = quiet_s, num_blocks
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
        if now_s >= self._quiet_s and is_empty and num_held > 1:  # a witness may be on its way to be decoded
            raise Broken(f"replica {output.replica} has lost {num_held} blocks")


@contextmanager
def built(configuration: Configuration) -> Iterator[tuple[Simulated, object, int]]:
    """Build what a configuration asks for; raises ConfigError if that is refused."""
    with TemporaryDirectory() as folder:
        options = configuration.write(Path(folder))
        target, _, load, _, engine = records_of(options)
        yield Simulated.of(engine, target), load, engine.seed


def run(configuration: Configuration, *, decode_runs: bool = True) -> Recorder:
    """Replay a configuration once, under watch."""
    with built(configuration) as (simulated, load, seed):
        config = replace(simulated.config, decode_runs=decode_runs, debug=True)
        simulated = replace(simulated, config=config)
        plan = simulated.plan
        capacities = (
            [simulated.capacity] * config.replicas if plan is None else [e.capacity for e in plan.engines]
        )
        quiet_s = configuration.rows[-1].arrival_s - 40.0
        assert quiet_s > LAST_S - 40.0
        watch = Watch(quiet_s, [each.num_blocks - 1 for each in capacities])
        return play(simulated, configuration.rows, load, seed, listeners=[watch])  # type: ignore[arg-type]


def digest(recorder: Recorder) -> str:
    """Return a text that differs if any figure or any column of a run does."""
    from sim.figures.metrics import summarize

    found = hashlib.blake2b(summarize(recorder).to_json().encode(), digest_size=12)
    for column in recorder.columns.stored():
        found.update(repr(list(column)).encode())
    return found.hexdigest()


def check_accounts(configuration: Configuration, recorder: Recorder) -> None:
    """Every request that came has one end, and all figures count the same ones."""
    from sim.figures.metrics import summarize
    from sim.figures.sweep.played import load_of, measure, played
    from sim.figures.totals import NO_TERMS
    from sim.show.summary_table import print_summary

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
    from sim.figures.metrics import summarize

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
        with built(configuration):
            pass
    except ConfigError as error:
        on_refusal(str(error))
        return None
    try:
        recorder = run(configuration)
        check_accounts(configuration, recorder)
        found = digest(recorder)
        if digest(run(configuration, decode_runs=False)) != found:
            raise Broken("runs of decodes change the bytes")
        if thoroughly:
            if digest(run(configuration)) != found:
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
