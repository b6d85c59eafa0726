"""A replay from its options to its figures: what `sundog replay` and `sundog.replay()` both do.

Its ranges come from two more runs, with steps as short and as long as they may be (`sundog.sim.cost.doubt`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from sundog.actors.kernel.actor import Actor
from sundog.actors.messages import Heard
from sundog.builds.simulated import asked_terms
from sundog.options.simulation import LoadOptions, TermsOptions, parse_rate
from sundog.sim.deployment.record import Simulated
from sundog.sim.figures.metrics import Summary, request_times, summarize
from sundog.sim.interrupt import Interrupted
from sundog.sim.oracle import find_predictor
from sundog.sim.record.recorder import Recorder
from sundog.sim.record.rows import Rows
from sundog.sim.record.sink import Unkept
from sundog.sim.replay import replay
from sundog.sim.trace.record import TraceRequest
from sundog.sim.workload.resample import retimed

if TYPE_CHECKING:
    from sundog.sim.figures.validate.predict import Ranges
    from sundog.sim.record.run_output import RunOutput


def play(
    simulated: Simulated,
    rows: Iterable[TraceRequest],
    load: LoadOptions,
    seed: int,
    output: "RunOutput | Unkept | None" = None,
    on_progress: Callable[[int], None] | None = None,
    listeners: Sequence[Actor[Heard]] = (),
    stop_when: Callable[[Recorder], bool] | None = None,
) -> Recorder:
    """Play requests at the instants that the rows give them; the load's own rate is not heeded."""
    output = output or Unkept()
    return replay(
        rows,
        simulated.config,
        simulated.cost,
        simulated.capacity,
        predictor=None if load.predictor is None else find_predictor(load.predictor, seed),
        front_end_s=simulated.front_end_s,
        max_concurrency=load.max_concurrency,
        client_timeout_s=load.client_timeout,
        sink=output.sink,
        on_progress=on_progress,
        listeners=(*output.listeners, *listeners),
        tap=output.tap,
        stop_when=stop_when,
        furnish=simulated.furnish,
    )


def replayed(
    simulated: Simulated,
    rows: Iterable[TraceRequest],
    load: LoadOptions,
    terms: TermsOptions,
    seed: int,
    output: "RunOutput | Unkept",
    on_progress: Callable[[int], None] | None = None,
    listeners: Sequence[Actor[Heard]] = (),
) -> Summary:
    """Replay the rows and finish the output; a replay that Ctrl-C ends leaves the part that it made."""
    held_against = simulated.terms(asked_terms(terms))
    if load.request_rate is not None:
        rows = retimed(rows, parse_rate(load.request_rate), seed)
    try:
        recorder = play(simulated, rows, load, seed, output, on_progress, listeners)
    except Interrupted as end:
        part = replace(summarize(end.recorder, held_against, output.rows()), remarks=simulated.priced)
        output.finish_part(part.to_json(), end.until_s)
        raise
    summary = replace(summarize(recorder, held_against, output.rows()), remarks=simulated.priced)
    output.finish(summary.to_json())
    return summary


def ranged(simulated: Simulated, rows: Sequence[TraceRequest], load: LoadOptions, seed: int) -> "Ranges":
    """The ranges of a replay that has ended: its `kernels` know by then how far they were asked."""
    from sundog.sim.figures.validate.predict import ranges_of

    doubt, sides = simulated.doubt, []
    for side in simulated.doubted():
        asked = rows if load.request_rate is None else retimed(rows, parse_rate(load.request_rate), seed)
        recorder = play(side, asked, load, seed)
        times = request_times(recorder)
        done = Rows.of(recorder.columns).is_done
        values = {"ttft": times.ttft_s, "tpot": times.tpot_s, "e2e": times.e2e_s}
        sides.append({name: own[done & ~np.isnan(own)] for name, own in values.items()})
    return ranges_of(sides[0], sides[1], doubt)
