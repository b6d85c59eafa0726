"""Replay from options to figures: common part of `sundog replay` and `sundog.replay()`.

Ranges of figures come from two more replays, one with the shortest and one with the longest likely steps
(`sundog.sim.cost.doubt`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from sundog.actors.config.front_costs import NO_FRONT
from sundog.actors.kernel.actor import Actor
from sundog.actors.messages import Heard
from sundog.builds.simulated import asked_terms
from sundog.options.simulation import LoadOptions, TermsOptions, parse_rate
from sundog.sim.deployment.record import Simulated
from sundog.sim.figures.metrics import Summary, summarize
from sundog.sim.interrupt import Interrupted
from sundog.sim.oracle import find_predictor
from sundog.sim.record.recorder import Recorder
from sundog.sim.record.rows import Rows
from sundog.sim.record.sink import Unkept
from sundog.sim.replay import replay
from sundog.sim.trace.record import TraceRequest
from sundog.sim.workload.resample import retimed

if TYPE_CHECKING:
    from sundog.sim.record.run_output import RunOutput
    from sundog.sim.validation.predict import Ranges


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
    """Play the requests at the arrivals in the rows, and ignore the rate in `load`."""
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
    again: Callable[[], Sequence[TraceRequest]] | None = None,
    with_ranges: bool | None = None,
    most_ranged: int = 500,
) -> Summary:
    """Replay the rows and finish the output; Ctrl-C leaves a partial run.

    `again` returns the rows a second time, for the ranges of figures; by default they are computed for at
    most `most_ranged` requests.
    """
    held_against = simulated.terms(asked_terms(terms))
    if load.request_rate is not None:
        rows = retimed(rows, parse_rate(load.request_rate), seed)
    try:
        recorder = play(simulated, rows, load, seed, output, on_progress, listeners)
    except Interrupted as end:
        part = replace(summarize(end.recorder, held_against, output.rows()), remarks=simulated.priced)
        output.finish_part(part.to_json(), end.until_s)
        raise
    summary = summarize(recorder, held_against, output.rows())
    summary = replace(summary, remarks=simulated.priced)
    is_small = summary.num_requests <= most_ranged and summary.num_finished > 1
    if again is not None and (is_small if with_ranges is None else with_ranges):
        doubt = simulated.doubt  # by now for what was asked
        try:
            ranges = asdict(ranged(simulated, again(), load, seed))
        except KeyboardInterrupt:
            output.finish(summary.to_json())  # The run is whole, and lacks its ranges.
            raise
        summary = replace(summary, step_doubt=doubt, ranges_s=ranges)
    output.finish(summary.to_json())
    return summary


def ranged(simulated: Simulated, rows: Sequence[TraceRequest], load: LoadOptions, seed: int) -> "Ranges":
    """Return the ranges of a finished replay; its `kernels` recorded how far tables were extrapolated."""
    from sundog.sim.validation.predict import ranges_of, values_of

    doubt, (low, high), sides = simulated.doubt, simulated.doubted(), []
    for side, held in ((low, NO_FRONT), (high, high.config.front)):
        asked = rows if load.request_rate is None else retimed(rows, parse_rate(load.request_rate), seed)
        recorder = play(side, asked, load, seed)
        sides.append(values_of(recorder, Rows.of(recorder.columns).is_done, held))
    return ranges_of(sides[0], sides[1], doubt)
